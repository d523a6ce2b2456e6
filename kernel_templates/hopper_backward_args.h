// PODs of the Hopper backward, shared by host and device. NVRTC-clean.
#pragma once

#include "hopper_args.h"
#include "portable_args.h"

namespace bdcp::kernel {

/// Key positions [k_begin, k_end), at most Config::kN, and the query rows [q_begin, q_end) that see any of
/// them. Rows in [full_begin, full_end) see every key of a full tile.
struct HopperKeyTile {
  int k_begin, k_end, q_begin, q_end, full_begin, full_end;
  int seg_begin, seg_end;  ///< the documents; none: keys past the last one
  int rows_at;             ///< several documents: who sees key i is key_rows[rows_at + i - k_begin]
  /// The block of dQ sums of rows [q_begin, q_begin + Config::kM); negative: all keys of these rows are in this
  /// tile, so that their dQ is complete here.
  int sum_block;
  int index;  ///< among the tiles of its document: as many tiles add to its rows before it
  /// The block of rows to begin with; those before it come last. 0 where an item has one q head, and where
  /// tiles add in turn.
  int start;
  int reserved[4];
};

/// The rows [first, end) that see a key. `steep`: the first of those that sees another key too; a row with a
/// single key has a constant softmax, and its dS is zero rather than a rounding error.
struct alignas(16) HopperKeyRows {
  int first, end, steep, reserved;
};

/// The first add of a sum is a store: it is under way; it is done.
enum HopperAdded { kHopperClaimed = -1, kHopperStored = 1 };

/// Query rows [begin, end) that one CTA of the row kernels serves: a block of dQ sums where sum_block >= 0.
struct HopperRows {
  int begin, end;
  int kind;  ///< PortableRowKind
  int sum_block;
};

/// Maps are {dim, tile, rows + tile, heads} with the base one tile before row 0, as the forward's K map; a tile
/// of K and V has Config::kN rows, of Q and dO Config::kM.
struct HopperBackwardArgs {
  TensorMap q, dout, k, v, remote_k, remote_v;
  TensorMap out_rows, dout_rows;                        ///< unless Config::kSums; of Config::kDeltaRows rows
  Tensor k_rows, v_rows, remote_k_rows, remote_v_rows;  ///< K and V again, for the tile across the border
  Tensor dq;
  PortableKeyGradient dk, dv;
  const float *lse, *delta;  ///< if Config::kSums: [heads_q, rows], LSE * log2(e) and rowsum(dO * O)
  const float* natural_lse;  ///< else: as the call has it
  i64 natural_lse_stride;    ///< of heads
  /// f32 [block, heads_q, warpgroup, 4 columns, thread, 4] as accumulators stand; see hopper_backward_round.
  float* dq_sum;
  /// [block, heads_q, warpgroup], zero at first. If Config::kOrdered: tiles that have added to dq_sum. Else, of
  /// heads that are not wide: who has, kHopperClaimed or kHopperStored.
  int* added;
  int* ticket;  ///< the next item
  i64 rows;
  const HopperKeyTile* tiles;
  const HopperKeyRows* key_rows;
  const Segment* segments;
  /// dK and dV of single q heads, f32 [ring, kRatio, HopperParts::kFloats], in a ring of groups: a group is
  /// one tile and K/V head whose q heads are items of their own.
  float* parts;
  int* part_counts;       ///< [split_tiles, heads_kv]: parts that are there; one more once they are summed
  int ring;               ///< groups
  int split_tiles;        ///< the first ones: an item per q head. Others have one per K/V head. 0 unless
                          ///< Config::kSplit
  const int* tile_count;  ///< see ReferenceForwardArgs, tiles that are not split; null: item_count says it
  /// Below 2^30: split_tiles * heads_q, heads innermost, and other tiles * heads_kv.
  int item_count;
  HeadBands bands;  ///< of K/V heads, for tiles that are not split
  int heads_q, heads_kv;
  int remote_len, shared_begin;
  float scale, scale_log2;
};

struct HopperRowsArgs {
  Tensor out, dout, dq;
  const float* lse;
  i64 lse_stride;
  float *lse_log2, *delta;  ///< as HopperBackwardArgs has them
  float* dq_sum;
  int* added;
  int* ticket;
  int* part_counts;
  i64 part_groups;  ///< counts to reset
  i64 rows;
  const HopperRows* chunks;
  const int* count;  ///< of chunks, see ReferenceForwardArgs; null: chunk_count says it
  int chunk_count;
  int heads_q;
  float scale;
};

}  // namespace bdcp::kernel
