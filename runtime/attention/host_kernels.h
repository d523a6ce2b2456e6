// The mathematics of the host backend on one block of rows or keys, in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/backend.h"

namespace bdcp::attention {

/// Rows or key positions per block.
inline constexpr int kHostBlock = 64;

struct HostProblem {
  int ratio = 1, head_dim = 1, head_dim_v = 1;
  double scale = 1;
  double dropout_p = 0;
  std::int64_t remote_len = 0, shared_begin = 0;

  /// Key positions row i of the segment sees: the first of these many (0 or less: none).
  static std::int64_t visible(const plan::Segment& segment, std::int64_t i) {
    return i + 1 + segment.keys() - segment.rows();
  }
};

/// Buffers of one worker, reused from block to block.
struct HostScratch {
  std::vector<double> rows, rows2, keys, keys2, scores, weights, acc, acc2, state;
};

/// Rows [begin, end) of the segment (relative, at most kHostBlock), query head `head`: O and LSE.
void host_forward_block(const HostProblem& problem, const ForwardCall& call, const plan::Segment& segment,
                        std::int64_t begin, std::int64_t end, int head, HostScratch& scratch);
/// dQ of the same rows.
void host_dq_block(const HostProblem& problem, const BackwardCall& call, const plan::Segment& segment,
                   std::int64_t begin, std::int64_t end, int head, HostScratch& scratch);
/// dK and dV of keys [begin, end) of the segment (relative), K/V head `kv_head`, summed over its query heads
/// and their rows in ascending order.
void host_dkv_block(const HostProblem& problem, const BackwardCall& call, const plan::Segment& segment,
                    std::int64_t begin, std::int64_t end, int kv_head, HostScratch& scratch);
/// Zeros for the gradients of key position `position`.
void host_zero_key(const HostProblem& problem, const BackwardCall& call, std::int64_t position, int kv_head);

}  // namespace bdcp::attention
