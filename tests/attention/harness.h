// Shared by the attention tests: cases, data, hand-made single-rank plans, running a prepared backend in host
// memory, and comparing with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "support/numbers.h"
#include "support/oracle.h"
#include "support/tensors.h"

namespace bdcp::test {

struct Case {
  RaggedLayout layout;
  CallShape shape;
  HostTensor::Order order = HostTensor::Order::packed;
  std::uint64_t seed = 1;
  double sigma = 1.0;
  DropoutState dropout;
};
std::string describe(const Case& c);

CallShape make_shape(int heads_q, int heads_kv, int head_dim, DType dtype, int head_dim_v = 0);

/// One rank that holds everything; documents without rows or keys stay in the list.
plan::RankPlan single_rank_plan(const RaggedLayout& layout);

struct Data {
  HostTensor q, k, v, dout;
};
/// Random real rows; padding rows are NaN and Inf.
Data make_data(const Case& c);

struct Outputs {
  HostTensor out, dq, dk, dv;
  HostLse lse;
};
/// Filled with garbage of the right shape.
Outputs make_outputs(const Case& c);

check::Results oracle_of(const Case& c, const Data& data);

/// What results must be: in float64, and of a run that rounds as a kernel of the dtype does.
struct Expected {
  check::Results exact, rounded;
};
/// `gradients`: false leaves dQ, dK and dV out.
Expected expected_of(const Case& c, const Data& data, bool gradients = true);

/// Views of a whole single-rank call. The workspace is the caller's.
attention::ForwardCall forward_call(const Case& c, const Data& data, Outputs& outputs);
attention::BackwardCall backward_call(const Case& c, const Data& data, Outputs& outputs);

/// Forward and backward of a backend that works in host memory.
Outputs run(const attention::PreparedAttention& prepared, const Case& c, const Data& data);
Outputs run_host(const Case& c, const Data& data);

/// Results against the oracle and the rounded run, by "Numbers that pass" and row by row; padding, rows without
/// keys and keys without rows exactly zero. Gradients of `outputs` may have another dtype than the call's.
void expect_results(const Case& c, const Expected& expected, const Outputs& outputs, bool lse = true,
                    bool gradients = true);
/// The same for all five results.
void expect_oracle(const Case& c, const Data& data, const Outputs& outputs);

/// Bitwise equality of all results in the given rows and key rows.
void expect_same_bits(const Outputs& a, const Outputs& b, std::int64_t q_begin, std::int64_t q_end,
                      std::int64_t k_begin, std::int64_t k_end);
bool same_bits(const HostLse& a, const HostLse& b, std::int64_t begin, std::int64_t end);

/// The layouts and shapes every backend is compared on: tricky layouts, GQA, dims, dtypes and strides in turn.
std::vector<Case> standard_cases(int random_layouts, std::int64_t max_rows);

}  // namespace bdcp::test
