// The plan: what every rank derives from a DocLayout alone. Pure host code; the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bdcp/doc_layout.h"

namespace bdcp::plan {

/// Rows [row_offset, row_offset + local_len) belong to a rank; the first n_real of them are real.
/// It needs keys [s_first, real_end) of the packed sequence; back = row_offset - s_first of them live on other
/// ranks. An all-padding rank has n_real = back = 0 and s_first = real_end = row_offset. Rectangular layouts
/// (world 1): real_end counts keys, n_real query rows.
struct RankRange {
  std::int64_t row_offset = 0, n_real = 0, s_first = 0, real_end = 0, back = 0;
};

/// Tokens [begin, begin + tokens) of the packed sequence, owned by src, needed by dst.
struct Edge {
  int src = 0, dst = 0;
  std::int64_t begin = 0, tokens = 0;
  friend bool operator==(const Edge&, const Edge&) = default;
};

/// Feasible iff back <= local_len on every rank. recv[r] = back of r; send[r] = back of r + 1.
struct Halo {
  bool feasible = true;
  std::vector<std::int64_t> recv, send;
};

/// Tables over all ranks, O(documents + world + edges). Edges are sorted by (dst, src); own tokens are never an
/// edge.
struct GlobalPlan {
  int world = 1;
  std::int64_t local_len = 0, tokens = 0;
  std::vector<RankRange> ranks;
  Halo halo;
  std::vector<Edge> edges;
  std::vector<std::int64_t> area;  ///< visible (row, column) pairs per rank
};

/// One document's part on a rank: local query rows and key positions. Key position p counts from s_first:
/// p < remote_len is remote row p (oldest first), otherwise local K/V row p - remote_len.
/// Row i of the segment (0-based) sees its keys j with j <= i + (keys - rows).
struct Segment {
  std::int32_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  std::int32_t rows() const { return q_end - q_begin; }
  std::int32_t keys() const { return k_end - k_begin; }
};

/// Varlen metadata as kernels and the reference know it. Square: the segments, all of which have rows and keys.
/// Rectangular: every segment, so that the offsets stay positions.
struct VarlenMeta {
  std::int64_t n_real = 0, s_first = 0, real_end = 0;
  std::vector<std::int32_t> cu_q{0}, cu_k{0};
  std::int32_t max_q = 0, max_k = 0, first_q = 0, first_k = 0, max_tail = 0;
};

/// What one rank needs beyond the global tables.
struct RankPlan {
  int rank = 0;
  bool square = true;
  RankRange range;
  std::int64_t rows = 0;        ///< rows of the rank's query tensors (local_len; world 1: tokens)
  std::int64_t key_rows = 0;    ///< rows of the rank's K/V tensors (= rows unless rectangular)
  std::int64_t remote_len = 0;  ///< = range.back
  /// Local key rows >= shared_begin receive gradient partials from later ranks; = key_rows if none do.
  std::int64_t shared_begin = 0;
  std::vector<Segment>
      segments;  ///< in order; the first may hold remote keys; includes segments without rows or keys
  VarlenMeta meta;
  std::vector<Edge> sends, recvs;  ///< sends by ascending dst, recvs by ascending src (oldest token first)
  /// Segments [0, remote_segments) need remote keys: 1 if remote_len > 0, else 0.
  int remote_segments() const { return remote_len > 0 ? 1 : 0; }
};

GlobalPlan make_global_plan(const DocLayout& layout);
/// O(own segments + own edges + log documents).
RankPlan make_rank_plan(const DocLayout& layout, const GlobalPlan& global, int rank);

/// The guard: empty, or why `meta` must not reach a kernel (order and wording of the reference's guard).
std::string metadata_guard(const VarlenMeta& meta, std::int64_t query_len, std::int64_t key_len);

/// Empty, or which index of `plan` a kernel must not consume: segments out of order or range, transfers outside
/// the rank's rows, and, for square layouts, metadata_guard. O(segments + transfers); run before the first
/// launch.
std::string plan_guard(const RankPlan& plan);

/// K plus V bytes received in forward, all ranks together.
struct PathBytes {
  std::int64_t allgather = 0, halo = 0, a2a = 0;
};
PathBytes path_bytes(const GlobalPlan& global, std::int64_t bytes_per_token);

}  // namespace bdcp::plan
