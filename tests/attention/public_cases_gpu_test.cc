// Inputs that broke published attention kernels, on every CUDA backend. The comment of a case says what goes
// wrong elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "attention/device_harness.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

using Lengths = std::vector<std::int64_t>;

class PublicCasesGpu : public BackendGpu {
 protected:
  void SetUp() override {
    BackendGpu::SetUp();
    static std::set<BackendKind> warmed;  // the shapes below, all at once: compiling takes most of the time
    if (IsSkipped() || !warmed.insert(GetParam()).second) return;
    std::vector<std::pair<CallShape, attention::Options>> calls;
    calls.push_back({make_shape(9, 3, 64, DType::bf16), {}});
    calls.push_back({make_shape(21, 7, 120, DType::f16), {}});
    for (const int dim : {16, 32, 64, 128}) calls.push_back({make_shape(1, 1, dim, DType::f16), {}});
    for (const int dim : {16, 64}) calls.push_back({make_shape(1, 1, dim, DType::bf16), {}});
    for (const int dim : {16, 32, 64, 72, 96, 136}) calls.push_back({make_shape(2, 1, dim, DType::bf16), {}});
    for (const int dim_v : {192, 128}) calls.push_back({make_shape(2, 2, 192, DType::bf16, dim_v), {}});
    warm(calls);
  }
  /// Against the oracle, padding and rows without keys included.
  Outputs expect_exact(const RaggedLayout& layout, const CallShape& shape, double sigma = 1) {
    Case c;
    c.layout = layout;
    c.shape = shape;
    c.sigma = sigma;
    const std::string why = refuses(shape);
    EXPECT_EQ(why, "");
    if (!why.empty()) return make_outputs(c);
    const Data data = make_data(c);
    Outputs outputs = run_device(c, data);
    expect_oracle(c, data, outputs);
    return outputs;
  }
};

// Dao-AILab/flash-attention#1537: a shape error, since the longest document has one row.
TEST_P(PublicCasesGpu, EmptyDocumentsBetweenSingleRows) {
  expect_exact(from_lengths(Lengths{0, 1, 0, 1}), make_shape(9, 3, 64, DType::bf16));
}

// Dao-AILab/flash-attention#1619: an error where fewer tokens than documents come with 21:7 heads of 120.
TEST_P(PublicCasesGpu, FewerTokensThanDocuments) {
  expect_exact(from_lengths(Lengths{0, 0, 0, 1}), make_shape(21, 7, 120, DType::f16));
}

// Dao-AILab/flash-attention#443: dQ of rows that see no key is NaN.
TEST_P(PublicCasesGpu, RowsWithoutKeysHaveZeroGradient) {
  expect_exact(from_lengths({76, 34, 146}, {1, 1, 1}, 0, 0, "one key each"), make_shape(4, 4, 32, DType::f16));
  expect_exact(from_lengths({2, 2, 300}, {0, 0, 0}, 1, 0, "no keys"), make_shape(2, 1, 32, DType::bf16));
}

// Dao-AILab/flash-attention#334: dQ of one query with one key is NaN. A softmax over one key is constant.
TEST_P(PublicCasesGpu, OneQueryOneKey) {
  for (const int dim : {16, 64, 128}) {
    const Outputs outputs = expect_exact(from_lengths(Lengths{1}), make_shape(1, 1, dim, DType::f16));
    for (const double value : outputs.dq.values()) ASSERT_NEAR(value, 0, 1e-6);
    for (const double value : outputs.dk.values()) ASSERT_NEAR(value, 0, 1e-6);
  }
}

// Dao-AILab/flash-attention#1052: gradients are NaN in fp16 for inputs three times as large.
TEST_P(PublicCasesGpu, LargeLogitsInHalfPrecision) {
  ASSERT_EQ(refuses(make_shape(1, 1, 128, DType::f16)), "");
  const Outputs outputs = expect_exact(from_lengths(Lengths{1024}), make_shape(1, 1, 128, DType::f16), 3.0);
  for (const HostTensor* tensor : {&outputs.out, &outputs.dq, &outputs.dk, &outputs.dv})
    for (const double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
}

// Dao-AILab/flash-attention#1778: half of the rows are zero, which is right: the last query sees all keys.
TEST_P(PublicCasesGpu, TwiceAsManyQueriesAsKeys) {
  expect_exact(from_lengths({2048}, {1024}, 0, 0, "2048 of 1024"), make_shape(1, 1, 64, DType::bf16));
}

// Dao-AILab/flash-attention#752, fla-org/flash-linear-attention#892, NVIDIA/TransformerEngine#1009: tensors are
// longer than the last offset; NaN gradients, or the rest is left unwritten.
TEST_P(PublicCasesGpu, TensorsLongerThanTheDocuments) {
  for (const std::int64_t pad : {212, 1, 218})  // 698, 487 and 704 rows
    expect_exact(from_lengths(Lengths{137, 349}, pad, "offsets end early"), make_shape(4, 2, 64, DType::bf16));
}

// Dao-AILab/flash-attention#1311, #1500: 32-bit offsets over documents; illegal access in backward from about
// ten thousand on.
TEST_P(PublicCasesGpu, TwelveThousandDocuments) {
  Case c;
  Lengths lengths;
  for (int i = 0; i < 12000; ++i) lengths.push_back(i % 4);
  c.layout = from_lengths(lengths, 7, "12000 documents");
  c.shape = make_shape(4, 2, 16, DType::bf16);
  ASSERT_EQ(refuses(c.shape), "");
  const Data data = make_data(c);
  expect_oracle(c, data, run_device(c, data));
}

// flashinfer-ai/flashinfer#4451: rows are zero where the only logit is below a finite stand-in for -inf.
TEST_P(PublicCasesGpu, VeryLowLogitsAreNotHidden) {
  Case c;
  c.layout = from_lengths(Lengths{1, 3, 70}, 0, "low logits");
  c.shape = make_shape(1, 1, 16, DType::bf16);
  c.shape.scale = 1.0;
  ASSERT_EQ(refuses(c.shape), "");
  Data data = make_data(c);
  data.q.fill(400.0);
  data.k.fill(-400.0);  // logits of -2560000
  const Outputs outputs = run_device(c, data);
  for (int d = 0; d < 16; ++d) {
    EXPECT_EQ(outputs.out.at(0, 0, d), data.v.at(0, 0, d));
    double mean = 0;
    for (int t = 1; t < 4; ++t) mean += data.v.at(t, 0, d) / 3;
    EXPECT_NEAR(outputs.out.at(3, 0, d), mean, 2e-2);
  }
  for (const float lse : outputs.lse.data) EXPECT_NEAR(lse, -2560000.0, 8.0);
  for (const HostTensor* tensor : {&outputs.dq, &outputs.dk, &outputs.dv})
    for (const double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
}

// flashinfer-ai/flashinfer#4299: silently wrong by about 1 for dims that are no multiple of 64, illegal access
// at 96.
TEST_P(PublicCasesGpu, DimsBetweenTheUsualOnes) {
  for (const int dim : {72, 136, 96})
    expect_exact(from_lengths(Lengths{150, 3, 70}, 4, "dims"), make_shape(4, 2, dim, DType::bf16));
}

// Dao-AILab/flash-attention#1214: a part of the output is not written.
TEST_P(PublicCasesGpu, ThreeQueriesSevenKeysAtDim192) {
  for (const int dim_v : {192, 128})
    expect_exact(from_lengths({3}, {7}, 0, 0, "3 of 7"), make_shape(2, 2, 192, DType::bf16, dim_v));
}

// flashinfer-ai/flashinfer#3800: every document after the first is wrong. tile-ai/tilelang#2010: blocks past a
// document's end write into the next one. Equal documents must have equal results wherever they lie.
TEST_P(PublicCasesGpu, EqualDocumentsHaveEqualResults) {
  Case c;
  c.layout = from_lengths(Lengths(6, 77), 0, "six times 77");
  c.shape = make_shape(4, 2, 64, DType::bf16);
  ASSERT_EQ(refuses(c.shape), "");
  Data data = make_data(c);
  for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout})
    for (std::int64_t t = 77; t < x->tokens(); ++t)
      for (std::int64_t h = 0; h < x->heads(); ++h)
        for (std::int64_t d = 0; d < x->dim(); ++d) x->set(t, h, d, x->at(t % 77, h, d));
  const Outputs outputs = run_device(c, data);
  expect_oracle(c, data, outputs);
  for (std::int64_t t = 77; t < c.layout.rows(); ++t)
    for (int h = 0; h < 4; ++h)
      for (int d = 0; d < 64; ++d)
        ASSERT_NEAR(outputs.out.at(t, h, d), outputs.out.at(t % 77, h, d), 1e-2) << t;
}

// NVIDIA/TransformerEngine#1930: 7 tokens over two ranks are taken for 6. #3331: 698 rows padded to 704 over
// four ranks lose keys, as the padding is not noticed.
TEST_P(PublicCasesGpu, OddDocumentsOverRanks) {
  const std::pair<RaggedLayout, int> cases[] = {{from_lengths(Lengths{7}, 1, "seven"), 2},
                                                {from_lengths(Lengths{137, 349, 212}, 6, "698 of 704"), 4}};
  for (const auto& [layout, world] : cases) {
    Case c;
    c.layout = layout;
    c.shape = make_shape(4, 2, 64, DType::bf16);
    attention::Options options;
    options.batch_invariant = true;  // the ranks' tiles are the whole's
    if (!refuses(c.shape, options).empty()) continue;
    const Data data = make_data(c);
    expect_ranks_equal_whole(
        c, data, world, options, [&](const plan::RankPlan& plan) { return prepare(c.shape, plan, options); },
        same_dq(options));
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, PublicCasesGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
