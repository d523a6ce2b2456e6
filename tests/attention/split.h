// A square case on several ranks (no communicator: remote rows are copied, partials added by hand) against the
// same case on one rank.
#pragma once

#include <functional>

#include "attention/harness.h"

namespace bdcp::test {

/// Rows [begin, end) as a packed tensor.
HostTensor copy_rows(const HostTensor& from, std::int64_t begin, std::int64_t end);

using Prepare = std::function<std::shared_ptr<const attention::PreparedAttention>(const plan::RankPlan&)>;

/// Query-side results must be bit-identical; so must dK and dV of documents that no chunk edge cuts,
/// and sums of partials must match the oracle. c.layout is padded to a multiple of 2 * world first.
void expect_ranks_equal_whole(Case c, const Data& data, int world, const attention::Options& options,
                              const Prepare& prepare, bool exact_dq = true);

}  // namespace bdcp::test
