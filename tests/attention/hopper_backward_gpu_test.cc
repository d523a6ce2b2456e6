// The Hopper backend's own backward on a CUDA device against the oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/device_harness.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

class HopperBackwardGpu : public GpuFixture {
 protected:
  HopperBackwardGpu() : GpuFixture(attention::make_hopper_backend()) {}
  void SetUp() override {
    GpuFixture::SetUp();
    if (device_ && device_->facts().arch != "sm_90a") GTEST_SKIP() << "the device is not sm_90a";
    offset_ = 0;  // elsewhere the portable kernels run
  }
  static attention::Options with(bool deterministic, bool payload_f32 = true) {
    attention::Options options;
    options.hopper_backward = true;
    options.deterministic = deterministic;
    options.payload_f32 = payload_f32;
    return options;
  }
  static void expect_same(const Outputs& a, const Outputs& b, bool dq) {
    EXPECT_TRUE(a.dk.same_bits(b.dk));
    EXPECT_TRUE(a.dv.same_bits(b.dv));
    if (dq) {
      EXPECT_TRUE(a.dq.same_bits(b.dq));
    }
  }
};

// A short document first: if waiting for each other goes wrong, this is the test that shows it.
TEST_F(HopperBackwardGpu, OneDocument) {
  for (const int dim : {128, 64, 256})
    for (const int length : {1, 64, 100, 128, 129, 300, 1000}) {
      Case c;
      c.layout = from_lengths({length}, 0, "one");
      c.shape = make_shape(2, 1, dim, DType::bf16);
      const Data data = make_data(c);
      expect_oracle(c, data, run_device(c, data, with(false)));
    }
}

TEST_F(HopperBackwardGpu, MatchesOracle) {
  const std::pair<int, int> dims[] = {{192, 128}, {64, 64}, {128, 128}, {40, 72},
                                      {96, 96},   {72, 40}, {64, 128},  {256, 256}};
  const int ratios[] = {1, 4, 3, 7, 2, 16, 8, 5};
  int i = 0;
  for (Case c : standard_cases(24, 700)) {
    const auto [d, dv] = dims[i % 8];
    const int ratio = ratios[i % 8], kv = 1 + i % 2;
    c.shape = make_shape(ratio * kv, kv, d, i % 2 ? DType::f16 : DType::bf16, dv);
    offset_ = i % 8 == 7 ? 4 : 0;
    const Data data = make_data(c);
    expect_oracle(c, data, run_device(c, data, with(i % 3 == 0, i % 5 != 0)));
    ++i;
  }
}

TEST_F(HopperBackwardGpu, EveryHeadDim) {
  for (int d = 8; d <= 256; d += 8) {
    Case c;
    c.layout = from_lengths({65, 33, 1, 300}, {70, 33, 1, 170}, 3, 2, "dims");
    c.shape = make_shape(2, 1, d, d % 16 ? DType::f16 : DType::bf16);
    const Data data = make_data(c);
    expect_oracle(c, data, run_device(c, data, with(d % 32 == 0)));
  }
}

TEST_F(HopperBackwardGpu, PoisonStaysInItsDocument) {
  for (const int ratio : {1, 3, 4}) {
    Case c;
    c.layout = from_lengths({33, 5, 64, 1, 70, 20, 20, 9, 260}, 9, "poison");
    c.shape = make_shape(2 * ratio, 2, ratio == 3 ? 128 : ratio == 4 ? 192 : 64, DType::bf16);
    const Data clean = make_data(c);
    const Outputs expected = run_device(c, clean, with(true));
    for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
      const std::int64_t begin = c.layout.cu_q[doc], end = c.layout.cu_q[doc + 1];
      Data data = clean;
      for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(begin, end);
      const Outputs outputs = run_device(c, data, with(true));
      for (const auto& [from, to] : {std::pair{std::int64_t{0}, begin}, {end, c.layout.rows()}})
        for (const auto& [got, clean_one] :
             {std::pair{&outputs.dq, &expected.dq}, {&outputs.dk, &expected.dk}, {&outputs.dv, &expected.dv}})
          // Documents that were done again alone meet other rounding: as near as that.
          for (std::int64_t t = from; t < to; ++t)
            for (std::int64_t h = 0; h < got->heads(); ++h)
              for (std::int64_t d = 0; d < got->dim(); ++d)
                ASSERT_NEAR(got->at(t, h, d), clean_one->at(t, h, d), 0.05) << doc << " " << t;
      EXPECT_TRUE(std::isnan(outputs.dq.at(end - 1, 0, 0)));
      EXPECT_TRUE(std::isnan(outputs.dk.at(begin, 0, 0)));
      EXPECT_TRUE(std::isnan(outputs.dv.at(begin, 0, 0)));
    }
  }
}

// More shared tiles than CTAs, all of them done again: the queue of those never grows.
TEST_F(HopperBackwardGpu, ManyPoisonedTiles) {
  Case c;
  c.layout = from_lengths(std::vector<std::int64_t>(700, 40), 5, "many_poisoned");
  c.shape = make_shape(4, 4, 64, DType::bf16);
  const Data clean = make_data(c);
  Data data = clean;
  for (std::int64_t doc = 0; doc < 700; doc += 3)
    for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(doc * 40, doc * 40 + 40);
  const Outputs expected = run_device(c, clean, with(true)), outputs = run_device(c, data, with(true));
  for (std::int64_t doc = 0; doc < 700; ++doc)
    for (std::int64_t t = doc * 40; t < doc * 40 + 40; t += 13)
      for (std::int64_t d = 0; d < 64; d += 7) {
        if (doc % 3 == 0) {
          ASSERT_TRUE(std::isnan(outputs.dq.at(t, 1, d)));
        } else {
          ASSERT_NEAR(outputs.dq.at(t, 1, d), expected.dq.at(t, 1, d), 0.05) << doc;
          ASSERT_NEAR(outputs.dk.at(t, 1, d), expected.dk.at(t, 1, d), 0.05) << doc;
          ASSERT_NEAR(outputs.dv.at(t, 1, d), expected.dv.at(t, 1, d), 0.05) << doc;
        }
      }
}

TEST_F(HopperBackwardGpu, SameBitsEveryTime) {
  for (const bool deterministic : {false, true}) {
    Case c;
    c.layout = from_lengths({300, 77, 2000, 20, 30}, 3, "repeat");
    c.shape = make_shape(8, 2, 64, DType::bf16);
    const Data data = make_data(c);
    const Outputs first = run_device(c, data, with(deterministic));
    for (int i = 0; i < 20; ++i) expect_same(run_device(c, data, with(deterministic)), first, deterministic);
  }
}

TEST_F(HopperBackwardGpu, RanksTogetherEqualTheWhole) {
  for (const int world : {2, 3, 4}) {
    Case c;
    c.layout = from_lengths({41, 350, 1, 137}, 23, "ranks");
    c.shape = make_shape(6, 2, world == 3 ? 128 : 64, DType::bf16);
    const Data data = make_data(c);
    for (const bool payload_f32 : {true, false}) {
      attention::Options options = with(true, payload_f32);
      options.batch_invariant = true;
      expect_ranks_equal_whole(
          c, data, world, options, [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); },
          false);
    }
  }
}

TEST_F(HopperBackwardGpu, LargeLogitsStayFinite) {
  Case c;
  c.layout = from_lengths({1024}, 0, "times_three");
  c.shape = make_shape(1, 1, 128, DType::f16);
  c.sigma = 3.0;
  const Data data = make_data(c);
  const Outputs outputs = run_device(c, data, with(false));
  for (const HostTensor* tensor : {&outputs.out, &outputs.dq, &outputs.dk, &outputs.dv})
    for (const double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
  expect_oracle(c, data, outputs);
}

}  // namespace
}  // namespace bdcp::test
