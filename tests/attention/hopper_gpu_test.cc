// What is special to the Hopper backend, on a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/device_harness.h"

namespace bdcp::test {
namespace {

class HopperGpu : public GpuFixture {
 protected:
  HopperGpu() : GpuFixture(attention::make_hopper_backend()) { offset_ = 0; }
  void SetUp() override {
    GpuFixture::SetUp();
    if (device_ && device_->facts().arch != "sm_90a") GTEST_SKIP() << "the device is not sm_90a";
  }
};

// Short documents first: where warps or tiles wait for each other in a circle, this is the test that shows it.
TEST_F(HopperGpu, OneDocument) {
  for (const int dim : {128, 64, 256})
    for (const bool deterministic : {false, true})
      for (const int length : {1, 64, 100, 128, 129, 300, 1000}) {
        Case c;
        c.layout = from_lengths({length}, 0, "one");
        c.shape = make_shape(2, 1, dim, DType::bf16);
        const Data data = make_data(c);
        expect_oracle(c, data, run_device(c, data, {.deterministic = deterministic}));
      }
}

// More shared tiles than CTAs, all of them done again document by document: the backward's queue of those never
// grows.
TEST_F(HopperGpu, ManyPoisonedTiles) {
  Case c;
  c.layout = from_lengths(std::vector<std::int64_t>(700, 40), 5, "many_poisoned");
  c.shape = make_shape(4, 4, 64, DType::bf16);
  const attention::Options options{.deterministic = true};
  const Data clean = make_data(c);
  Data data = clean;
  for (std::int64_t doc = 0; doc < 700; doc += 3)
    for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(doc * 40, doc * 40 + 40);
  const Outputs expected = run_device(c, clean, options), outputs = run_device(c, data, options);
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

// What TMA cannot read is the portable backend's, and that is said.
TEST_F(HopperGpu, LeavesWhatIsMisalignedToPortable) {
  Case c;
  c.layout = from_lengths({150, 1, 20}, 3, "misaligned");
  c.shape = make_shape(4, 2, 64, DType::bf16);
  const Data data = make_data(c);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4}}) {
    offset_ = offset;
    downgrades_.clear();
    expect_oracle(c, data, run_device(c, data));
    EXPECT_EQ(std::count(downgrades_.begin(), downgrades_.end(), "misaligned") > 0, offset > 0);
  }
}

}  // namespace
}  // namespace bdcp::test
