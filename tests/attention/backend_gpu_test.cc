// Every CUDA backend over the parameter space, against the oracle and by counting.
#include <gtest/gtest.h>

#include <map>

#include "attention/counting.h"
#include "attention/device_harness.h"

namespace bdcp::test {
namespace {

// Shared by the backends: the oracle takes longer than the kernels.
const Expected& expected_of_case(std::size_t index, const CoveringCase& one, const Data& data) {
  static std::map<std::size_t, Expected> known;
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  return known.emplace(index, expected_of(one.c, data, one.c.shape.backward)).first->second;
}

class SpaceGpu : public BackendGpu {
 protected:
  Outputs run_one(const CoveringCase& one, const Data& data, bool zero_out = false) {
    offset_ = one.c.order == HostTensor::Order::padded ? 4 : 0;
    return run_covering(*prepare(one.c.shape, plan_of(one), one.options), one, data, zero_out);
  }
};

TEST_P(SpaceGpu, CoveringDesignMatchesOracle) {
  const std::vector<CoveringCase> cases = covering_cases();
  // The reference backend computes every case the same way, whatever its tiles: a part of them is enough.
  const std::size_t stride = reference() ? 5 : 1;
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (std::size_t i = 0; i < cases.size(); i += stride) calls.emplace_back(cases[i].c.shape, cases[i].options);
  warm(calls);
  std::map<std::string, int> refused;
  std::size_t ran = 0;
  for (std::size_t i = 0; i < cases.size(); i += stride) {
    const CoveringCase& one = cases[i];
    SCOPED_TRACE(one.name);
    if (const std::string why = refuses(one.c.shape, one.options); !why.empty()) {
      ++refused[why];
      continue;
    }
    ++ran;
    const Data data = data_of(one, true);
    const Outputs outputs = run_one(one, data);
    expect_covering(one, expected_of_case(i, one, data), outputs);
    if (one.options.deterministic) {
      const Outputs again = run_one(one, data);
      EXPECT_TRUE(again.dq.same_bits(outputs.dq)) << "deterministic dQ differs";
    }
    if (one.poisoned >= 0)
      expect_isolated(one, outputs, run_one(one, data_of(one, false)), same_bits_isolated(one.options));
  }
  for (const auto& [code, count] : refused) RecordProperty("refused_" + code, count);
  EXPECT_GE(3 * ran, cases.size() / stride) << "most of the space was refused";
}

TEST_P(SpaceGpu, EveryVisiblePairIsCounted) {
  // A width of tiles each.
  std::vector<CallShape> shapes{make_shape(6, 2, 64, DType::f16), make_shape(4, 1, 128, DType::f16),
                                make_shape(2, 2, 192, DType::f16, 128), make_shape(3, 1, 256, DType::f16)};
  if (reference()) shapes.resize(1);
  for (const CallShape& shape : shapes) {
    if (!refuses(shape).empty()) continue;
    const attention::Options f32{.deterministic = false, .batch_invariant = false, .payload_f32 = true};
    const attention::Options input{.deterministic = false, .batch_invariant = false, .payload_f32 = false};
    warm({{shape, f32}, {shape, input}});
    for (const CoveringCase& one : counting_cases(shape)) {
      expect_counts(one, run_one(one, counting_data(one), true));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, SpaceGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
