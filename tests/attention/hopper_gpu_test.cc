// What is special to the Hopper backend, on a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/device_harness.h"
#include "attention/split.h"

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
  for (const bool beside_long : {false, true}) {  // which has another kernel
    Case c;
    std::vector<std::int64_t> lengths(700, 40);
    if (beside_long) lengths.push_back(129);
    c.layout = from_lengths(lengths, 5, "many_poisoned");
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
}

// Where no document has more keys than a tile, the backward has a kernel of its own.
TEST_F(HopperGpu, ShortDocumentsOnly) {
  const RaggedLayout layouts[] = {
      from_lengths({128, 1, 33, 64, 20, 0, 127, 128, 65, 2}, 7, "short"),
      from_lengths({90, 20, 7, 128, 70, 64}, {30, 20, 128, 100, 0, 64}, 5, 2, "short_keyless")};
  const std::pair<int, int> dims[] = {{128, 128}, {64, 64}, {96, 96}, {40, 72}, {8, 16}, {64, 128}, {128, 64}};
  const int ratios[] = {4, 1, 3, 2, 7};
  std::vector<Case> cases;
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (int i = 0; i < 7; ++i) {
    Case& c = cases.emplace_back();
    c.shape = make_shape(ratios[i % 5] * 2, 2, dims[i].first, i % 3 ? DType::bf16 : DType::f16, dims[i].second);
    calls.push_back({c.shape, {.deterministic = i % 4 == 3, .batch_invariant = i == 6}});
  }
  warm(calls);
  for (std::size_t i = 0; i < 14; ++i) {
    Case& c = cases[i / 2];
    const attention::Options& options = calls[i / 2].second;
    c.layout = layouts[i % 2];
    c.order = static_cast<HostTensor::Order>(i % 3);
    SCOPED_TRACE(describe(c));
    const Data data = make_data(c);
    const Outputs outputs = run_device(c, data, options);
    expect_oracle(c, data, outputs);
    const Outputs again = run_device(c, data, options);
    EXPECT_TRUE(again.dq.same_bits(outputs.dq));
    EXPECT_TRUE(again.dk.same_bits(outputs.dk));
    EXPECT_TRUE(again.dv.same_bits(outputs.dv));
    const auto backward_key = [&](const RaggedLayout& layout) {
      std::string key;
      const auto prepared = prepare_on_device(c.shape, single_rank_plan(layout), options);
      for (const KernelInfo& info : prepared->kernels())
        if (info.kernel == "hopper_backward") key = info.key;
      return key;
    };
    EXPECT_EQ(backward_key(c.layout) == backward_key(from_lengths({10, 129, 10}, 0, "long")),
              options.batch_invariant);
  }
}

// In whatever order heads come, each has the same bits.
TEST_F(HopperGpu, FewHeadsAtATime) {
  for (const bool deterministic : {false, true})
    for (const auto& [heads, heads_kv, dim] : {std::tuple{8, 4, 128}, {4, 4, 64}}) {
      Case c;
      c.layout = from_lengths({300, 40, 1, 450, 0, 20, 130}, 3, "few_heads");
      c.shape = make_shape(heads, heads_kv, dim, DType::bf16);
      SCOPED_TRACE(describe(c));
      const Data data = make_data(c);
      // Also keeps the backward from having an item per query head.
      const attention::Options options{.deterministic = deterministic, .batch_invariant = true};
      heads_at_once_ = heads_kv;
      const Outputs all = run_device(c, data, options);
      expect_oracle(c, data, all);
      for (const int few : {1, heads_kv / 2}) {
        heads_at_once_ = few;
        const Outputs outputs = run_device(c, data, options);
        EXPECT_TRUE(outputs.out.same_bits(all.out));
        EXPECT_TRUE(same_bits(outputs.lse, all.lse, 0, c.layout.rows()));
        EXPECT_TRUE(outputs.dk.same_bits(all.dk));
        EXPECT_TRUE(outputs.dv.same_bits(all.dv));
        if (deterministic) {
          EXPECT_TRUE(outputs.dq.same_bits(all.dq));
        }
      }
      if (deterministic) continue;
      heads_at_once_ = 1;  // also where K/V is in two places
      expect_ranks_equal_whole(
          c, data, 2, options, [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); },
          false);
    }
}

// The shortest tiles first, on fewer SMs, then the others: the same bits, whatever the margin.
TEST_F(HopperGpu, SmsForATransferThatStarts) {
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{5000, 3000, 192}, std::vector<std::int64_t>{130, 64, 1}}) {
    Case c;
    c.layout = from_lengths(lengths, 0, "margin");
    c.shape = make_shape(32, 8, 128, DType::bf16);
    SCOPED_TRACE(describe(c));
    const Data data = make_data(c);
    const auto prepared = prepare(c.shape, single_rank_plan(c.layout));
    const auto forward = [&](int margin, bool at_start) {
      Outputs outputs = make_outputs(c);
      attention::ForwardCall call = forward_call(c, data, outputs);
      call.sm_margin = margin;
      call.margin_at_start = at_start;
      prepared->forward(call, Part::local, Stream());
      return outputs;
    };
    const Outputs whole = forward(0, false);
    for (const auto& [margin, at_start] : {std::pair{16, true}, {16, false}, {1000, true}, {0, true}}) {
      const Outputs outputs = forward(margin, at_start);
      EXPECT_TRUE(outputs.out.same_bits(whole.out)) << margin << at_start;
      EXPECT_TRUE(same_bits(outputs.lse, whole.lse, 0, c.layout.rows())) << margin << at_start;
    }
  }
}

// Where remote keys take long, tiles begin with their local ones and go on from there: the same bits.
TEST_F(HopperGpu, LocalKeysFirst) {
  const attention::Options options{.batch_invariant = true};
  const std::tuple<int, int, int, DType> shapes[] = {
      {8, 2, 128, DType::bf16}, {2, 2, 128, DType::f16}, {4, 1, 64, DType::bf16}, {1, 1, 256, DType::bf16}};
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (const auto& [heads, heads_kv, dim, dtype] : shapes)
    calls.emplace_back(make_shape(heads, heads_kv, dim, dtype), options);
  warm(calls);
  arrival_rate_ = 1;
  for (const auto& [shape, unused] : calls)
    for (const auto& [lengths, world] : {std::pair{std::vector<std::int64_t>{2400}, 2},
                                         {std::vector<std::int64_t>{1700, 310}, 3},
                                         {std::vector<std::int64_t>{37, 1990, 5}, 2}}) {
      Case c;
      std::int64_t tokens = 0;
      for (const std::int64_t length : lengths) tokens += length;
      c.layout = from_lengths(lengths, (2 * world - tokens % (2 * world)) % (2 * world), "local_keys_first");
      c.shape = shape;
      const Data data = make_data(c);
      std::size_t kept = 0;
      expect_ranks_equal_whole(
          c, data, world, options,
          [&](const plan::RankPlan& plan) {
            kept += prepare_on_device(c.shape, plan, options)->forward_workspace();
            return prepare(c.shape, plan, options);
          },
          false);
      EXPECT_GT(kept, 0u);
    }
}

// Where documents have more keys than rows, tiles with the same rows begin at blocks of their own and go round
// all query heads of their K/V head from there.
TEST_F(HopperGpu, TilesWithTheSameRowsBeginApart) {
  const attention::Options options{.batch_invariant = true};  // never an item per query head
  const std::tuple<int, int, int, DType> shapes[] = {
      {8, 2, 128, DType::bf16}, {3, 1, 128, DType::f16}, {4, 1, 64, DType::bf16}, {4, 2, 192, DType::bf16}};
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (const auto& [heads, heads_kv, dim, dtype] : shapes)
    calls.emplace_back(make_shape(heads, heads_kv, dim, dtype), options);
  warm(calls);
  for (const auto& [shape, unused] : calls) {
    Case c;
    c.layout = from_lengths({700, 300, 40}, {2000, 1300, 200}, 3, 0, "begin_apart");
    c.shape = shape;
    SCOPED_TRACE(describe(c));
    const Data data = make_data(c);
    const Outputs outputs = run_device(c, data, options), again = run_device(c, data, options);
    expect_oracle(c, data, outputs);
    EXPECT_TRUE(again.dk.same_bits(outputs.dk));
    EXPECT_TRUE(again.dv.same_bits(outputs.dv));
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
