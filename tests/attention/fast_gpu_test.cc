// The CUDA backends that run on tensor cores against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "attention/covering_cases.h"
#include "attention/device_harness.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

class FastGpu : public BackendGpu {};

// Shapes in turn over the standard layouts; strides of every kind, rows on 16 bytes and off them.
TEST_P(FastGpu, MatchesOracle) {
  const std::pair<int, int> dims[] = {{32, 32}, {64, 64},   {128, 128}, {40, 72},
                                      {96, 96}, {192, 128}, {256, 256}, {8, 16}};
  const int ratios[] = {1, 4, 3, 7, 2, 16, 8, 5};
  std::vector<std::pair<CallShape, attention::Options>> calls;
  std::vector<Case> cases = standard_cases(24, 700);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto [d, dv] = dims[i % 8];
    const int ratio = ratios[i % 8], kv = 1 + static_cast<int>(i % 2);
    cases[i].shape = make_shape(ratio * kv, kv, d, i % 2 ? DType::f16 : DType::bf16, dv);
    if (cases[i].order == HostTensor::Order::padded && i % 2) cases[i].order = HostTensor::Order::spaced;
    calls.push_back({cases[i].shape, {}});
  }
  warm(calls);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    offset_ = i % 5 == 4 ? 4 : 0;
    const Data data = make_data(cases[i]);
    downgrades_.clear();
    expect_oracle(cases[i], data, run_device(cases[i], data));
    // Else the tests of one backend would pass by another's kernels.
    if (offset_ == 0 && cases[i].order != HostTensor::Order::padded) {
      EXPECT_TRUE(downgrades_.empty());
    }
  }
}

constexpr attention::Options kDeterministic{.deterministic = true};

// Enough tiles for an item per K/V head, each of several q heads, long documents beside short ones.
TEST_P(FastGpu, ManyTilesOfGroupedHeadsMatchTheOracle) {
  std::vector<std::int64_t> lengths{330};
  for (int i = 0; i < 14; ++i)  // no longer than needed: the oracle is slow
    for (const std::int64_t length : {140, 3, 61, 129}) lengths.push_back(length + i);
  Case c;
  c.layout = from_lengths(lengths, 5, "many");
  for (const int dim : {64, 128}) {
    c.shape = make_shape(16, 8, dim, DType::bf16);
    const Data data = make_data(c);
    const Expected expected = expected_of(c, data);
    for (const bool deterministic : {false, true})
      expect_results(c, expected, run_device(c, data, {.deterministic = deterministic}));
  }
}

// Documents with more keys than a key tile and with fewer, square and not, rows without keys, padding.
TEST_P(FastGpu, DeterministicMatchesOracle) {
  const std::pair<int, int> dims[] = {{128, 128}, {64, 64},   {40, 72},   {256, 256}, {96, 96},
                                      {192, 128}, {128, 128}, {192, 192}, {8, 16},    {64, 128}};
  const RaggedLayout layouts[] = {from_lengths({300, 77, 200, 20, 1, 30}, 3, "square"),
                                  from_lengths({165, 33, 1, 300}, {470, 33, 1, 170}, 3, 2, "rectangular"),
                                  from_lengths({1, 700, 129}, 0, "long"),
                                  from_lengths({400, 10, 5, 64}, {150, 600, 0, 129}, 40, 1, "keyless")};
  const int ratios[] = {4, 1, 3, 2, 7, 16};
  for (int i = 0; i < 10; ++i) {
    Case c;
    c.layout = layouts[i % 4];
    c.order = static_cast<HostTensor::Order>(i % 3);
    c.shape = make_shape(ratios[i % 6] * (1 + i % 2), 1 + i % 2, dims[i].first,
                         i % 3 ? DType::bf16 : DType::f16, dims[i].second);
    offset_ = i % 3 == 1 ? 4 : 0;
    const Data data = make_data(c);
    expect_oracle(c, data, run_device(c, data, kDeterministic));
  }
}

// Forward at every dim; backward, which takes much longer to compile, at those the other tests leave out.
TEST_P(FastGpu, EveryHeadDim) {
  const std::set<int> backward{24, 32, 48, 56, 88, 104, 112, 152, 176, 208, 232, 248};
  std::vector<std::pair<CallShape, attention::Options>> calls;
  for (int d = 8; d <= 256; d += 8) {
    CallShape shape = make_shape(2, 1, d, d % 16 ? DType::f16 : DType::bf16);
    shape.backward = backward.contains(d);
    calls.push_back({shape, {}});
  }
  warm(calls);
  for (const auto& [shape, options] : calls) {
    CoveringCase one;
    one.c.layout = from_lengths({65, 33, 1, 300}, {70, 33, 1, 170}, 3, 2, "dims");
    one.c.shape = shape;
    const Data data = data_of(one, true);
    expect_covering(one, expected_of(one.c, data, shape.backward),
                    run_covering(*prepare(shape, plan_of(one)), one, data));
    if (shape.head_dim % 24 == 8 && shape.backward)
      expect_covering(one, expected_of(one.c, data, true),
                      run_covering(*prepare(shape, plan_of(one), kDeterministic), one, data));
  }
}

// Whatever a document's own tensors hold: rows that see no key have O and dQ of exactly zero.
TEST_P(FastGpu, RowsWithoutKeysAreZeroBesideNan) {
  for (const bool deterministic : {false, true}) {
    Case c;
    c.layout = from_lengths({90, 400, 20, 7}, {30, 150, 20, 3}, 5, 2, "keyless");
    c.shape = make_shape(4, 2, 64, DType::bf16);
    Data data = make_data(c);
    for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->fill(std::nan(""));
    const Outputs outputs = run_device(c, data, {.deterministic = deterministic});
    for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
      const std::int64_t begin = c.layout.cu_q[doc], rows = c.layout.cu_q[doc + 1] - begin,
                         keys = c.layout.cu_k[doc + 1] - c.layout.cu_k[doc];
      for (std::int64_t row = begin; row < begin + rows - keys; ++row)
        for (int head = 0; head < 4; ++head) {
          EXPECT_EQ(outputs.out.at(row, head, 0), 0) << row;
          EXPECT_EQ(outputs.dq.at(row, head, 63), 0) << row;
        }
    }
  }
}

TEST_P(FastGpu, PoisonStaysInItsDocument) {
  for (const auto& [ratio, dim, deterministic] : {std::tuple{1, 64, false},
                                                  {3, 64, false},
                                                  {4, 64, false},
                                                  {3, 128, true},
                                                  {4, 192, false},
                                                  {1, 64, true},
                                                  {4, 64, true}}) {
    const attention::Options options{.deterministic = deterministic};
    CoveringCase one;
    one.c.layout = from_lengths({33, 5, 64, 1, 70, 20, 20, 9, 260}, 9, "poison");
    one.c.shape = make_shape(2 * ratio, 2, dim, DType::bf16);
    const Data clean = make_data(one.c);
    const Outputs expected = run_device(one.c, clean, options);
    for (std::size_t doc = 0; doc + 1 < one.c.layout.cu_q.size(); ++doc) {
      one.poisoned = static_cast<int>(doc);
      Data data = clean;
      for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout})
        x->poison(one.c.layout.cu_q[doc], one.c.layout.cu_q[doc + 1]);
      expect_isolated(one, expected, run_device(one.c, data, options), same_bits_isolated(options));
    }
  }
}

// Rows without keys lie between documents that share a tile.
TEST_P(FastGpu, PoisonStaysInItsDocumentWithoutKeys) {
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

// Other work takes SMs meanwhile, so that CTAs start in another order every time.
TEST_P(FastGpu, DeterministicBitsBesideOtherWork) {
  Case c;
  c.layout = from_lengths({700, 77, 1500, 20, 300}, 3, "beside");
  c.shape = make_shape(8, 2, 128, DType::bf16);
  const Data data = make_data(c);
  const Outputs first = run_device(c, data, kDeterministic);
  const auto prepared = prepare_on_device(c.shape, single_rank_plan(c.layout), kDeterministic);
  Outputs again = first, others = first;
  Mirror mine(device_, 0), theirs(device_, 0);
  attention::BackwardCall call = on_device(backward_call(c, data, again), mine),
                          other = on_device(backward_call(c, data, others), theirs);
  call.workspace = mine.workspace(prepared->backward_workspace());
  other.workspace = theirs.workspace(prepared->backward_workspace());
  const device::OwnedStream stream = device_->create_stream(), other_stream = device_->create_stream();
  const int ordinal = device_->facts().ordinal;
  for (int i = 0; i < 50; ++i) {
    for (int n = 0; n < i % 5; ++n)
      prepared->backward(other, Part::local, Stream::cuda(other_stream.get(), ordinal));
    for (const TensorView& x : {call.dq, call.dk, call.dv})
      device_->fill_async(x.data, 0xFF, static_cast<std::size_t>(x.tokens * x.heads * x.dim) * size_of(x.dtype),
                          stream.get());
    prepared->backward(call, Part::local, Stream::cuda(stream.get(), ordinal));
    device_->synchronize(stream.get());
    mine.download();
    EXPECT_TRUE(again.dq.same_bits(first.dq)) << i;
    EXPECT_TRUE(again.dk.same_bits(first.dk)) << i;
    EXPECT_TRUE(again.dv.same_bits(first.dv)) << i;
  }
  device_->synchronize(other_stream.get());
}

// The bits of a document do not depend on what it is packed with.
TEST_P(FastGpu, BatchInvariance) {
  const attention::Options options{.deterministic = true, .batch_invariant = true, .payload_f32 = true};
  struct Packed {
    std::int64_t length;
    CallShape shape;
    std::vector<std::int64_t> before;
  };
  const CallShape narrow = make_shape(4, 1, 64, DType::bf16);
  // One tile of keys, and several; at last beside so many tiles that an item per K/V head is enough for all
  // SMs.
  std::vector<std::int64_t> anywhere;
  std::mt19937_64 engine(7);
  for (int i = 0; i < 20; ++i) anywhere.push_back(static_cast<std::int64_t>(engine() % 400));
  const Packed cases[] = {{50, narrow, {1, 7, 30, 64, 129}},
                          {200, narrow, anywhere},
                          // All keys in one tile, alone or beside a document of several.
                          {128, make_shape(4, 1, 128, DType::f16), {7, 129}},
                          {300, narrow, {1, 7, 30, 64, 129}},
                          {300, make_shape(32, 16, 64, DType::bf16), {10000}}};
  for (const auto& [length, shape, offsets] : cases) {
    Case alone;
    alone.layout = from_lengths({length}, 0, "alone");
    alone.shape = shape;
    const Data data = make_data(alone);
    const Outputs expected = run_device(alone, data, options);
    for (const std::int64_t before : offsets) {
      Case packed = alone;
      packed.layout = from_lengths({before, length, 13}, 2, "packed");
      Data all = make_data(packed);
      const auto rows_of = [&](HostTensor& whole, const HostTensor& part, bool place) {
        for (std::int64_t t = 0; t < length; ++t)
          for (std::int64_t h = 0; h < part.heads(); ++h)
            for (std::int64_t d = 0; d < part.dim(); ++d)
              if (place)
                whole.set(before + t, h, d, part.at(t, h, d));
              else
                ASSERT_EQ(whole.at(before + t, h, d), part.at(t, h, d)) << length << " after " << before;
      };
      rows_of(all.q, data.q, true);
      rows_of(all.k, data.k, true);
      rows_of(all.v, data.v, true);
      rows_of(all.dout, data.dout, true);
      Outputs outputs = run_device(packed, all, options);
      rows_of(outputs.out, expected.out, false);
      for (std::int64_t h = 0; h < shape.heads_q; ++h)
        for (std::int64_t t = 0; t < length; ++t)
          ASSERT_EQ(outputs.lse.data[static_cast<std::size_t>(h * outputs.lse.tokens + before + t)],
                    expected.lse.data[static_cast<std::size_t>(h * expected.lse.tokens + t)])
              << length << " after " << before;
      rows_of(outputs.dq, expected.dq, false);
      rows_of(outputs.dk, expected.dk, false);
      rows_of(outputs.dv, expected.dv, false);
    }
  }
}

TEST_P(FastGpu, RanksTogetherEqualTheWhole) {
  for (const int world : {2, 3, 4}) {
    Case c;
    c.layout = from_lengths({41, 350, 1, 137}, 23, "ranks");
    c.shape = make_shape(6, 2, world == 3 ? 128 : 64, DType::bf16);
    const Data data = make_data(c);
    for (const bool deterministic : {true, false}) {
      offset_ = world == 3 && !deterministic ? 4 : 0;
      attention::Options options;
      options.deterministic = deterministic;
      // A rank's layout class, and with it the width of the K/V blocks, may differ from the whole's; batch
      // invariance fixes both, and then the bits of O and LSE are the same.
      options.batch_invariant = true;
      options.payload_f32 = deterministic == (world != 3);
      expect_ranks_equal_whole(
          c, data, world, options, [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); },
          false);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, FastGpu, ::testing::ValuesIn(fast_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
