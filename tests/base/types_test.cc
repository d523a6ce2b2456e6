#include "bdcp/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string_view>

namespace bdcp {
namespace {

TEST(Types, DtypesParseBackToThemselves) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(parse_dtype("Float32"), DType::f32);
  EXPECT_EQ(parse_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_dtype("half"), DType::f16);
  EXPECT_EQ(parse_dtype("BFLOAT16"), DType::bf16);
  EXPECT_EQ(parse_dtype("fp8"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_dtype(" f32"), std::nullopt);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
}

TEST(Types, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(BackendKind::host); ++i)
    names.insert(to_string(static_cast<BackendKind>(i)));
  EXPECT_EQ(names, (std::set<std::string_view>{"auto", "hopper", "portable", "reference", "host"}));
  names.clear();
  for (int i = 0; i <= static_cast<int>(ExchangePath::local); ++i)
    names.insert(to_string(static_cast<ExchangePath>(i)));
  EXPECT_EQ(names, (std::set<std::string_view>{"auto", "allgather", "halo", "a2a", "local"}));
  EXPECT_EQ(to_string(Direction::forward), "fwd");
  EXPECT_EQ(to_string(Direction::backward), "bwd");
}

TEST(Types, PackedViewsAreContiguousAndSlicedOnesAreNot) {
  float data[2 * 3 * 4] = {};
  const TensorView packed = TensorView::packed(data, DType::f32, 2, 3, 4);
  EXPECT_EQ(packed.token_stride, 12);
  EXPECT_EQ(packed.head_stride, 4);
  EXPECT_TRUE(packed.contiguous());
  TensorView one_head = packed;
  one_head.heads = 1;
  EXPECT_FALSE(one_head.contiguous());
  const TensorView heads_first{data, DType::f32, 2, 3, 4, 4, 8};  // [heads, tokens, dim] by strides
  EXPECT_FALSE(heads_first.contiguous());
  const ConstTensorView read_only = packed;
  EXPECT_EQ(read_only.data, data);
  EXPECT_EQ(read_only.tokens, 2);
  const ConstLseView lse = LseView::packed(data, 3, 2);
  EXPECT_EQ(lse.head_stride, 2);
}

TEST(Types, ShapeDefaults) {
  CallShape shape;
  shape.head_dim = 192;
  EXPECT_EQ(shape.dim_v(), 192);
  EXPECT_DOUBLE_EQ(shape.softmax_scale(), 1 / std::sqrt(192.0));
  shape.head_dim_v = 128;
  shape.scale = 0.25;
  EXPECT_EQ(shape.dim_v(), 128);
  EXPECT_DOUBLE_EQ(shape.softmax_scale(), 0.25);
}

TEST(Types, StreamsKnowWhereTheyRun) {
  EXPECT_TRUE(Stream::host().is_host());
  EXPECT_FALSE(Stream::cuda(nullptr, 0).is_host());
}

}  // namespace
}  // namespace bdcp
