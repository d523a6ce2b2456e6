// The reference backend on a CUDA device against the oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/device_harness.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

class ReferenceGpu : public GpuFixture {
 protected:
  ReferenceGpu() : GpuFixture(attention::make_reference_backend()) {}
};

TEST_F(ReferenceGpu, MatchesOracle) {
  const std::vector<Case> cases = standard_cases(40, 400);
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (const Case& c : cases) calls.push_back({c.shape, {}});
  warm(calls);
  for (const Case& c : cases) {
    const Data data = make_data(c);
    expect_oracle(c, data, run_device(c, data));
  }
}

TEST_F(ReferenceGpu, WideAndOddHeads) {
  const std::pair<int, int> dims[] = {{512, 512}, {400, 392}, {256, 256}, {192, 128}, {1, 1}, {136, 72}};
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (const auto& [d, dv] : dims)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      calls.push_back({make_shape(2, 1, d, dtype, dv), {}});
  warm(calls);
  for (const auto& [d, dv] : dims)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Case c;
      c.layout = from_lengths({65, 33, 1, 40}, {70, 33, 1, 10}, 3, 2, "wide");
      c.shape = make_shape(2, 1, d, dtype, dv);
      const Data data = make_data(c);
      expect_oracle(c, data, run_device(c, data));
    }
}

TEST_F(ReferenceGpu, PoisonStaysInItsDocument) {
  Case c;
  c.layout = from_lengths({33, 5, 64, 1, 70}, 9, "poison");
  c.shape = make_shape(6, 2, 64, DType::bf16);
  const Data clean = make_data(c);
  const Outputs expected = run_device(c, clean);
  for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
    const std::int64_t begin = c.layout.cu_q[doc], end = c.layout.cu_q[doc + 1];
    Data data = clean;
    for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(begin, end);
    const Outputs outputs = run_device(c, data);
    expect_same_bits(outputs, expected, 0, begin, 0, begin);
    expect_same_bits(outputs, expected, end, c.layout.rows(), end, c.layout.rows());
    EXPECT_TRUE(std::isnan(outputs.out.at(begin, 0, 0)));
    EXPECT_TRUE(std::isnan(outputs.dq.at(end - 1, 0, 0)));
  }
}

TEST_F(ReferenceGpu, SameBitsEveryTime) {
  Case c;
  c.layout = from_lengths({300, 77, 200}, 3, "repeat");
  c.shape = make_shape(8, 2, 64, DType::bf16);
  const Data data = make_data(c);
  const Outputs first = run_device(c, data);
  for (int i = 0; i < 5; ++i)
    expect_same_bits(run_device(c, data), first, 0, c.layout.rows(), 0, c.layout.rows());
}

TEST_F(ReferenceGpu, DropoutIsTheHostsMask) {
  Case c;
  c.layout = from_lengths({100, 31}, {120, 31}, 2, 2, "dropout");
  c.shape = make_shape(4, 2, 32, DType::f32);
  c.shape.dropout_p = 0.25;
  c.dropout = {0xabcdef0123456789ull, 11};
  const Data data = make_data(c);
  expect_oracle(c, data, run_device(c, data));
}

TEST_F(ReferenceGpu, RanksTogetherEqualTheWhole) {
  for (const int world : {2, 3, 4}) {
    Case c;
    c.layout = from_lengths({41, 150, 1, 37}, 11, "ranks");
    c.shape = make_shape(6, 2, 64, DType::bf16);
    const Data data = make_data(c);
    for (const bool payload_f32 : {true, false}) {
      attention::Options options;
      options.payload_f32 = payload_f32;
      expect_ranks_equal_whole(c, data, world, options,
                               [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); });
    }
  }
}

// More CTAs than 65535, and documents by the thousand.
TEST_F(ReferenceGpu, ManyTinyDocuments) {
  Case c;
  c.layout = from_lengths(std::vector<std::int64_t>(8192, 2), 5, "8192_documents");
  c.shape = make_shape(16, 1, 16, DType::f32);
  const Data data = make_data(c);
  const Outputs device = run_device(c, data), host = run_host(c, data);
  using check::Quantity;
  EXPECT_TRUE(numbers_pass(Quantity::out, DType::f32, device.out.values(), host.out.values()));
  EXPECT_TRUE(numbers_pass(Quantity::gradient, DType::f32, device.dq.values(), host.dq.values()));
  EXPECT_TRUE(numbers_pass(Quantity::gradient, DType::f32, device.dk.values(), host.dk.values()));
  EXPECT_TRUE(numbers_pass(Quantity::gradient, DType::f32, device.dv.values(), host.dv.values()));
}

}  // namespace
}  // namespace bdcp::test
