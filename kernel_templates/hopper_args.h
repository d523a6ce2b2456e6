// PODs of the Hopper kernels, shared by host and device. NVRTC-clean.
#pragma once

#include "kernel_args.h"

namespace bdcp::kernel {

/// A CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Items are all tiles with the first `heads` heads, all tiles with the next ones, and so on: tiles of a few
/// heads share what the L2 cache holds of long documents. Within a band heads are innermost.
struct HeadBands {
  int items;  ///< of a band: tiles * heads; at least as many as there are items if one band has all heads
  int heads;
};

/// Key positions [begin, end).
struct KeyRange {
  int begin, end;
};

/// plan::Tile for one segment, or for several whole ones whose keys fit one block (`rows_at` >= 0). Key
/// positions count from the rank's first needed key. Rows past the last segment have no keys: k_end = k_begin.
struct HopperTile {
  int q_begin, q_end, k_begin, k_end;
  int unmasked;  ///< the first blocks that every row sees in full
  int shift;     ///< one segment: row i sees positions below i + shift + 1
  int rows_at;   ///< several: what row i sees is visible[rows_at + i - q_begin]; else negative
  /// Config::kStaged, of a tile in two items: n + 1 keeps what its rows have so far as state n, -(n + 1) goes
  /// on from there. 0: all in one.
  int state;
};

/// As the maps below, of 2^border_shift rows instead of Config::kN.
struct HopperBorder {
  TensorMap local, remote;
};

/// K and V maps are {dim, Config::kN, rows + Config::kN, heads}, Q and O maps {dim, Config::kPack,
/// Config::kTokens, rows + Config::kTokens, heads / Config::kPack}: rows have two coordinates that are added,
/// with the base one tile before row 0, so that the end of the first one cuts a tile off at any row.
struct HopperForwardArgs {
  TensorMap q, k, v, remote_k, remote_v, out;
  /// K and V again, for the block with remote and local keys, if there is one: in pieces, and row by row.
  HopperBorder k_border, v_border;
  Tensor k_rows, v_rows, remote_k_rows, remote_v_rows;
  float* lse;  ///< may be null
  i64 lse_stride;
  const HopperTile* tiles;
  const KeyRange* visible;
  const int* tile_count;  ///< see ReferenceForwardArgs; null: item_count says it
  int item_count;         ///< below 2^30: tiles * groups
  int groups;             ///< heads_q / Config::kPack
  HeadBands bands;        ///< of groups
  int remote_len;
  int border_shift;  ///< at least 3; more only if remote_len, counted in blocks, and Config::kN are multiples
  float* states;     ///< Config::kStaged: [state, groups, HopperShape::kStateFours, computing threads, 4]
  /// Zero at the start, and again at the end: the CTAs draw their items from it. Null: items are dealt out.
  int* ticket;
  float scale_log2;  ///< softmax scale * log2(e)
};

}  // namespace bdcp::kernel
