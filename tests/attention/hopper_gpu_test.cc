// The Hopper backend on a CUDA device against the oracle. Its backward is the portable one.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/device_harness.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

class HopperGpu : public GpuFixture {
 protected:
  HopperGpu() : GpuFixture(attention::make_hopper_backend()) {}
  void SetUp() override {
    GpuFixture::SetUp();
    if (device_ && device_->facts().arch != "sm_90a") GTEST_SKIP() << "the device is not sm_90a";
    offset_ = 0;  // elsewhere the portable kernels run
  }
};

// Shapes in turn over the standard layouts; strides packed, padded and head-major, rows on 16 bytes and, now
// and then, off them.
TEST_F(HopperGpu, MatchesOracle) {
  const std::pair<int, int> dims[] = {{32, 32}, {64, 64},   {128, 128}, {40, 72},
                                      {96, 96}, {192, 128}, {256, 256}, {8, 16}};
  const int ratios[] = {1, 4, 3, 7, 2, 16, 8, 5};
  int i = 0;
  for (Case c : standard_cases(24, 700)) {
    const auto [d, dv] = dims[i % 8];
    const int ratio = ratios[i % 8], kv = 1 + i % 2;
    c.shape = make_shape(ratio * kv, kv, d, i % 2 ? DType::f16 : DType::bf16, dv);
    offset_ = i % 9 == 8 ? 4 : 0;
    if (c.order == HostTensor::Order::padded && i % 2) c.order = HostTensor::Order::spaced;
    const Data data = make_data(c);
    downgrades_.clear();
    expect_oracle(c, data, run_device(c, data));
    // Else the portable kernels would pass for these.
    if (offset_ == 0 && c.order != HostTensor::Order::padded) {
      EXPECT_TRUE(downgrades_.empty()) << i;
    }
    ++i;
  }
}

TEST_F(HopperGpu, EveryHeadDim) {
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (int d = 8; d <= 256; d += 8)
    calls.push_back({make_shape(2, 1, d, d % 16 ? DType::f16 : DType::bf16), {}});
  warm(calls);
  for (int d = 8; d <= 256; d += 8) {
    Case c;
    c.layout = from_lengths({65, 33, 1, 300}, {70, 33, 1, 170}, 3, 2, "dims");
    c.shape = make_shape(2, 1, d, d % 16 ? DType::f16 : DType::bf16);
    const Data data = make_data(c);
    expect_oracle(c, data, run_device(c, data));
  }
}

TEST_F(HopperGpu, PoisonStaysInItsDocument) {
  for (const int ratio : {1, 3, 4}) {
    Case c;
    c.layout = from_lengths({33, 5, 64, 1, 70, 20, 20, 9, 260}, 9, "poison");
    c.shape = make_shape(2 * ratio, 2, ratio == 3 ? 128 : 64, DType::bf16);
    const Data clean = make_data(c);
    const Outputs expected = run_device(c, clean);
    for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
      const std::int64_t begin = c.layout.cu_q[doc], end = c.layout.cu_q[doc + 1];
      Data data = clean;
      for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(begin, end);
      const Outputs outputs = run_device(c, data);
      for (const auto& [from, to] : {std::pair{std::int64_t{0}, begin}, {end, c.layout.rows()}}) {
        EXPECT_TRUE(outputs.out.same_bits(expected.out, from, to));
        EXPECT_TRUE(same_bits(outputs.lse, expected.lse, from, to));
        EXPECT_TRUE(outputs.dk.same_bits(expected.dk, from, to));
        EXPECT_TRUE(outputs.dv.same_bits(expected.dv, from, to));
        // dQ of documents that span several key tiles is summed in any order: finite, and as near as rounding.
        for (std::int64_t t = from; t < to; ++t)
          for (std::int64_t h = 0; h < outputs.dq.heads(); ++h)
            for (std::int64_t d = 0; d < outputs.dq.dim(); ++d)
              ASSERT_NEAR(outputs.dq.at(t, h, d), expected.dq.at(t, h, d), 0.05) << t;
      }
      EXPECT_TRUE(std::isnan(outputs.out.at(begin, 0, 0)));
      EXPECT_TRUE(std::isnan(outputs.dq.at(end - 1, 0, 0)));
    }
  }
}

// Rows without keys lie between documents that share a tile.
TEST_F(HopperGpu, PoisonStaysInItsDocumentWithoutKeys) {
  Case c;
  c.layout = from_lengths({5, 9, 20, 3, 7}, {5, 3, 20, 0, 9}, 4, 2, "poison_rectangular");
  c.shape = make_shape(4, 2, 128, DType::f16);
  const Data clean = make_data(c);
  const Outputs expected = run_device(c, clean);
  for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
    const std::int64_t begin = c.layout.cu_q[doc], end = c.layout.cu_q[doc + 1];
    Data data = clean;
    data.q.poison(begin, end);
    for (HostTensor* x : {&data.k, &data.v}) x->poison(c.layout.cu_k[doc], c.layout.cu_k[doc + 1]);
    const Outputs outputs = run_device(c, data);
    for (const auto& [from, to] : {std::pair{std::int64_t{0}, begin}, {end, c.layout.rows()}}) {
      EXPECT_TRUE(outputs.out.same_bits(expected.out, from, to)) << doc;
      EXPECT_TRUE(same_bits(outputs.lse, expected.lse, from, to)) << doc;
    }
  }
}

TEST_F(HopperGpu, SameBitsEveryTime) {
  Case c;
  c.layout = from_lengths({300, 77, 200, 20, 30}, 3, "repeat");
  c.shape = make_shape(8, 2, 64, DType::bf16);
  const Data data = make_data(c);
  const Outputs first = run_device(c, data);
  for (int i = 0; i < 20; ++i) {
    const Outputs again = run_device(c, data);
    EXPECT_TRUE(again.out.same_bits(first.out));
    EXPECT_TRUE(same_bits(again.lse, first.lse, 0, c.layout.rows()));
    EXPECT_TRUE(again.dk.same_bits(first.dk));
    EXPECT_TRUE(again.dv.same_bits(first.dv));
  }
}

// The bits of a document do not depend on what it is packed with.
TEST_F(HopperGpu, BatchInvariance) {
  const attention::Options options{.deterministic = false, .batch_invariant = true, .payload_f32 = true};
  Case alone;
  alone.layout = from_lengths({50}, 0, "alone");
  alone.shape = make_shape(4, 1, 64, DType::bf16);
  const Data data = make_data(alone);
  const Outputs expected = run_device(alone, data, options);
  for (const std::int64_t before : {1, 7, 30, 64, 129}) {
    Case packed = alone;
    packed.layout = from_lengths({before, 50, 13}, 2, "packed");
    Data all = make_data(packed);
    const auto place = [&](HostTensor& to, const HostTensor& from) {
      for (std::int64_t t = 0; t < 50; ++t)
        for (std::int64_t h = 0; h < from.heads(); ++h)
          for (std::int64_t d = 0; d < from.dim(); ++d) to.set(before + t, h, d, from.at(t, h, d));
    };
    place(all.q, data.q);
    place(all.k, data.k);
    place(all.v, data.v);
    place(all.dout, data.dout);
    const Outputs outputs = run_device(packed, all, options);
    for (std::int64_t t = 0; t < 50; ++t)
      for (int h = 0; h < 4; ++h)
        for (int d = 0; d < 64; ++d) ASSERT_EQ(outputs.out.at(before + t, h, d), expected.out.at(t, h, d));
  }
}

TEST_F(HopperGpu, RanksTogetherEqualTheWhole) {
  for (const int world : {2, 3, 4}) {
    Case c;
    c.layout = from_lengths({41, 350, 1, 137}, 23, "ranks");
    c.shape = make_shape(6, 2, 64, DType::bf16);
    const Data data = make_data(c);
    for (const bool payload_f32 : {true, false}) {
      attention::Options options;
      // A rank's layout class, and with it the width of the K/V blocks, may differ from the whole's; batch
      // invariance fixes both, and then the bits of O and LSE are the same.
      options.batch_invariant = true;
      options.payload_f32 = payload_f32;
      expect_ranks_equal_whole(
          c, data, world, options, [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); },
          false);
    }
  }
}

TEST_F(HopperGpu, LargeLogitsStayFinite) {
  Case c;
  c.layout = from_lengths({1024}, 0, "times_three");
  c.shape = make_shape(1, 1, 128, DType::f16);
  c.sigma = 3.0;
  const Data data = make_data(c);
  const Outputs outputs = run_device(c, data);
  for (const HostTensor* tensor : {&outputs.out, &outputs.dq, &outputs.dk, &outputs.dv})
    for (const double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
  expect_oracle(c, data, outputs);
}

}  // namespace
}  // namespace bdcp::test
