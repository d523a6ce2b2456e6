// The parameter space of one attention call as a covering design, and how a row of it is run and judged.
#pragma once

#include <string>
#include <vector>

#include "attention/harness.h"

namespace bdcp::test {

/// One row of the design.
struct CoveringCase {
  Case c;
  attention::Options options;
  std::int64_t remote_len = 0;   ///< the first key positions lie in the remote tensors
  std::int64_t shared_keys = 0;  ///< the last local key rows get partials of later ranks
  bool lse = true;               ///< forward is asked for it; backward needs it
  bool poison_gaps = false;      ///< what belongs to no element is NaN
  int poisoned = -1;             ///< this document is NaN and Inf
  std::string name;
};
/// Two-way over dtype with dims with ratio, layout, remote keys with their payload, strides, poison, call,
/// batch invariance and scale; three-way over layout, remote keys, strides, poison and call. (Dims, dtype and
/// ratio are one factor: each of its levels costs about ten kernels. The remaining pairs of these have their
/// own tests.)
std::vector<CoveringCase> covering_cases();

plan::RankPlan plan_of(const CoveringCase& one);
/// Without the poisoned document if `clean`.
Data data_of(const CoveringCase& one, bool clean);

/// Runs forward, and backward if the shape has one, and collects gradients of all key positions as f32. Adds a
/// failure if memory that belongs to no element of an output was written. `zero_out`: backward is told that O
/// is zero.
Outputs run_covering(const attention::PreparedAttention& prepared, const CoveringCase& one, const Data& data,
                     bool zero_out = false);

/// The outputs of data_of(one, true) against the oracle.
void expect_covering(const CoveringCase& one, const Expected& expected, const Outputs& outputs);
/// Which gradients are the same bits in two runs.
struct SameBits {
  bool dq = true, dk_dv = true;
};
/// No other document's bits differ from the clean run's (gradients as `bits` says, else by no more than sums in
/// another order do), and the poisoned one has kept its NaN.
void expect_isolated(const CoveringCase& one, const Outputs& clean, const Outputs& poisoned, SameBits bits);

}  // namespace bdcp::test
