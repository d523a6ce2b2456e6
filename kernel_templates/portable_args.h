// PODs of the portable kernels, shared by host and device. NVRTC-clean.
#pragma once

#include "kernel_args.h"

namespace bdcp::kernel {

/// plan::Tile for one or more whole segments; see there. Key positions count from the rank's first needed key.
struct PortableTile {
  int q_begin, q_end, k_begin, k_end, seg_begin, seg_end, full_begin, full_end;
};

struct PortableForwardArgs {
  Tensor q, k, v, remote_k, remote_v, out;
  float* lse;  ///< may be null
  i64 lse_stride;
  const PortableTile* tiles;  ///< the launch covers gridDim.x / head_groups tiles from here
  const int* tile_count;      ///< see ReferenceForwardArgs
  const Segment* segments;
  int remote_len;
  int head_groups;   ///< heads_q / Config::kPack
  float scale_log2;  ///< softmax scale * log2(e)
};

/// Key positions [k_begin, k_end) of segments [seg_begin, seg_end), and the query rows [q_begin, q_end) that
/// see any of them. Rows in [full_begin, full_end) see every key of the tile. `whole`: all keys of these rows
/// are in this tile, so that their dQ is complete here.
struct PortableKeyTile {
  int k_begin, k_end, q_begin, q_end, seg_begin, seg_end, full_begin, full_end, whole;
};

/// Query rows [begin, end) that one CTA of the row kernels serves.
struct PortableRows {
  int begin, end;
  int kind;  ///< PortableRowKind
};
enum PortableRowKind { kRowsWhole = 0, kRowsSummed = 1, kRowsZero = 2 };

/// dK or dV of a rank's keys by destination; see attention::BackwardCall.
struct PortableKeyGradient {
  Tensor local;   ///< input dtype; local rows below shared_begin
  Tensor shared;  ///< f32; local rows from shared_begin on
  Tensor remote;  ///< f32 or input dtype; key positions below remote_len
};

/// Floats per row and head of PortableBackwardArgs::dq_sum: head_dim rounded up to this.
constexpr int kDqSumUnit = 16;

struct PortableBackwardArgs {
  Tensor q, k, v, remote_k, remote_v, out, dout, dq;
  const float* lse;
  i64 lse_stride;
  float* delta;  ///< [heads_q, rows]: rowsum(dO * O)
  /// f32 [rows, heads_q, kDim rounded up to kDqSumUnit], for rows whose keys span several tiles. 16 columns
  /// stand as a thread's accumulators do: at 4 * j + {0, 1, 2, 3}, columns 2 * j + {0, 1, 8, 9}. Null:
  /// such rows are left to portable_backward_dq.
  float* dq_sum;
  i64 rows;
  PortableKeyGradient dk, dv;
  const PortableKeyTile* tiles;
  const PortableRows* row_chunks;
  const int *tile_count, *chunk_count;  ///< see ReferenceForwardArgs
  const Segment* segments;
  int remote_len, shared_begin;
  int heads_q, heads_kv;
  float scale, scale_log2;
};

/// dQ of query tiles, after delta.
struct PortableDqArgs {
  Tensor q, k, v, remote_k, remote_v, dout, dq;
  const float* lse;
  i64 lse_stride;
  const float* delta;  ///< as in PortableBackwardArgs
  i64 rows;
  const PortableTile* tiles;  ///< the launch covers gridDim.x / head_groups tiles from here
  const int* tile_count;      ///< see ReferenceForwardArgs
  const Segment* segments;
  int remote_len;
  int head_groups;  ///< heads_q / Config::kPack
  float scale, scale_log2;
};

}  // namespace bdcp::kernel
