#include "bdcp/batch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "support/expect_error.h"
#include "support/host_tensors.h"
#include "support/layouts.h"

namespace bdcp {
namespace {

using test::expect_error;
using test::tensor;
using test::values;
using Ints = std::vector<std::int64_t>;

TEST(PaddedLength, MultipleOfTwiceTheWorld) {
  EXPECT_EQ(padded_length(5, 1).padded, 5);
  EXPECT_EQ(padded_length(5, 2).padded, 8);
  EXPECT_EQ(padded_length(8, 2).padded, 8);
  EXPECT_EQ(padded_length(0, 4).padded, 0);
  EXPECT_EQ(padded_length(13, 3).local, 6);
  expect_error(ErrorCode::invalid_argument, {"tokens is -1"}, [] { padded_length(-1, 2); });
  expect_error(ErrorCode::invalid_argument, {"world_size is 0"}, [] { padded_length(1, 0); });
}

TEST(ShardRows, AnyDimension) {
  const HostTensor in =
      tensor<std::int64_t>(ElementType::i64, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const HostTensor last = shard_rows(in, 1, -7, 2, 1);  // 3 rows padded to 4
  EXPECT_EQ(last.shape, (Ints{2, 2, 2}));
  EXPECT_EQ(values<std::int64_t>(last), (Ints{4, 5, -7, -7, 10, 11, -7, -7}));
  const HostTensor outer = shard_rows(in, 0, 0, 1, 0);
  EXPECT_EQ(values<std::int64_t>(outer), values<std::int64_t>(in));
  EXPECT_EQ(shard_rows(in, 2, 5, 3, 2).shape, (Ints{2, 3, 2}));
  EXPECT_EQ(values<std::int64_t>(shard_rows(in, 2, 5, 3, 2)), Ints(12, 5));
}

TEST(ShardRows, ConcatenationOfRanksIsThePaddedTensor) {
  test::RandomLayouts random(4);
  for (int i = 0; i < 100; ++i) {
    const std::int64_t rows = random.uniform(0, 40);
    const int world = static_cast<int>(random.uniform(1, 6));
    std::vector<std::int32_t> data(static_cast<std::size_t>(rows));
    for (std::int32_t& value : data) value = static_cast<std::int32_t>(random.uniform(-1000, 1000));
    const HostTensor in = tensor<std::int32_t>(ElementType::i32, {rows}, data);
    std::vector<std::int32_t> joined;
    for (int rank = 0; rank < world; ++rank) {
      const auto part = values<std::int32_t>(shard_rows(in, 0, 9, world, rank));
      joined.insert(joined.end(), part.begin(), part.end());
    }
    data.resize(static_cast<std::size_t>(padded_length(rows, world).padded), 9);
    EXPECT_EQ(joined, data);
  }
}

TEST(ShardRows, FillsOfEveryType) {
  const auto filled = [](ElementType type, double fill) {
    return shard_rows({type, {0, 1}, {}}, 0, fill, 1, 0);
  };
  EXPECT_TRUE(filled(ElementType::f16, 1.5).data.empty());
  const auto one = [](ElementType type, double fill) {
    HostTensor in{type, {1}, std::vector<std::byte>(size_of(type))};
    const HostTensor out = shard_rows(in, 0, fill, 2, 1);  // two rows of fill
    return std::vector<std::byte>(out.data.begin(),
                                  out.data.begin() + static_cast<std::ptrdiff_t>(size_of(type)));
  };
  const auto bits16 = [&](ElementType type, double fill) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, one(type, fill).data(), 2);
    return bits;
  };
  EXPECT_EQ(bits16(ElementType::bf16, 1.0), 0x3f80);
  EXPECT_EQ(bits16(ElementType::bf16, -100.0), 0xc2c8);
  EXPECT_EQ(bits16(ElementType::bf16, 1.00390625), 0x3f80);  // halfway, to even
  EXPECT_EQ(bits16(ElementType::bf16, 1.01171875), 0x3f82);
  EXPECT_EQ(bits16(ElementType::bf16, std::numeric_limits<float>::max()), 0x7f80);  // carries into infinity
  EXPECT_EQ(bits16(ElementType::f16, 1.0), 0x3c00);
  EXPECT_EQ(bits16(ElementType::f16, 65504.0), 0x7bff);
  EXPECT_EQ(bits16(ElementType::f16, 65520.0), 0x7c00);
  EXPECT_EQ(bits16(ElementType::f16, 1e9), 0x7c00);
  EXPECT_EQ(bits16(ElementType::f16, std::ldexp(1.0, -24)), 0x0001);
  EXPECT_EQ(bits16(ElementType::f16, std::ldexp(1023.5, -24)), 0x0400);  // subnormal rounds up to normal
  EXPECT_EQ(bits16(ElementType::f16, -0.0), 0x8000);
  EXPECT_EQ(bits16(ElementType::f16, -std::numeric_limits<double>::infinity()), 0xfc00);
  EXPECT_EQ(bits16(ElementType::f16, std::numeric_limits<double>::quiet_NaN()) & 0x7e00, 0x7e00);
  EXPECT_EQ(one(ElementType::boolean, 1)[0], std::byte{1});
  float f = 0;
  std::memcpy(&f, one(ElementType::f32, -2.5).data(), 4);
  EXPECT_EQ(f, -2.5f);
}

TEST(ShardRows, Errors) {
  const HostTensor in = tensor<std::int64_t>(ElementType::i64, {2}, {1, 2});
  expect_error(ErrorCode::invalid_argument, {"dimension is 1", "0 to 0"}, [&] { shard_rows(in, 1, 0, 2, 0); });
  expect_error(ErrorCode::invalid_argument, {"dimension is -1"}, [&] { shard_rows(in, -1, 0, 2, 0); });
  expect_error(ErrorCode::invalid_argument, {"rank is 2", "0 to 1"}, [&] { shard_rows(in, 0, 0, 2, 2); });
  expect_error(ErrorCode::invalid_argument, {"fill is 0.5", "whole numbers"},
               [&] { shard_rows(in, 0, 0.5, 2, 0); });
  expect_error(ErrorCode::invalid_argument, {"fill is 2", "boolean"}, [] {
    shard_rows({ElementType::boolean, {1}, {std::byte{1}}}, 0, 2, 2, 0);
  });
  expect_error(ErrorCode::invalid_argument, {"data has 8 bytes", "need 24"}, [] {
    shard_rows({ElementType::i64, {3}, std::vector<std::byte>(8)}, 0, 0, 2, 0);
  });
  expect_error(ErrorCode::invalid_argument, {"shape[0] is -3"}, [] {
    shard_rows({ElementType::i64, {-3}, {}}, 0, 0, 2, 0);
  });
  expect_error(ErrorCode::invalid_argument, {"more than 2^60"}, [] {
    shard_rows({ElementType::i64, {1ll << 40, 1ll << 40}, {}}, 0, 0, 2, 0);
  });
}

Batch batch_of_five() {
  return {{"input_ids", tensor<std::int64_t>(ElementType::i64, {1, 5}, {10, 11, 12, 13, 14})},
          {"labels", tensor<std::int64_t>(ElementType::i64, {1, 5}, {0, 1, 2, 3, 4})},
          {"_packed_seq_ids", tensor<std::int64_t>(ElementType::i64, {1, 5}, {1, 1, 2, 2, 0})}};
}

TEST(ShardBatch, KnownNamesGetTheirFills) {
  Batch batch = batch_of_five();
  batch["position_ids"] =
      tensor<std::int64_t>(ElementType::i64, {3, 1, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4});
  batch["loss_mask"] = tensor<float>(ElementType::f32, {1, 5}, {1, 1, 1, 1, 1});
  batch["name"] = tensor<std::int32_t>(ElementType::i32, {1}, {42});  // nothing row aligned about it
  const Batch before = batch;
  const ShardedBatch out = shard_batch(batch, {.world_size = 2, .rank = 1, .pad_token_id = 99});
  EXPECT_EQ(values<std::int64_t>(out.batch.at("input_ids")), (Ints{14, 99, 99, 99}));
  EXPECT_EQ(values<std::int64_t>(out.batch.at("labels")), (Ints{4, -100, -100, -100}));
  EXPECT_EQ(values<std::int64_t>(out.batch.at("_packed_seq_ids")), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(out.batch.at("position_ids").shape, (Ints{3, 1, 4}));
  EXPECT_EQ(values<std::int64_t>(out.batch.at("position_ids")), (Ints{4, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(values<float>(out.batch.at("loss_mask")), (std::vector<float>{1, 0, 0, 0}));
  EXPECT_EQ(values<std::uint8_t>(out.batch.at("padding_mask")), (std::vector<std::uint8_t>{1, 1, 1, 1}));
  EXPECT_EQ(values<std::int32_t>(out.batch.at("name")), (std::vector<std::int32_t>{42}));
  EXPECT_EQ(out.row_offset, 4);
  EXPECT_EQ(out.doc_ids, (Ints{1, 1, 2, 2, 0, 0, 0, 0}));
  EXPECT_EQ(out.packed_cu_seqlens, (Ints{0, 2, 4, 8}));
  for (const auto& [name, one] : batch) EXPECT_EQ(one.data, before.at(name).data);
}

TEST(ShardBatch, DocumentIdsInOrderOfPrecedence) {
  Batch batch = batch_of_five();
  batch["attention_mask"] = tensor<std::int64_t>(ElementType::i64, {1, 5}, {1, 1, 1, 1, 0});
  ShardOptions options{.world_size = 2};
  options.doc_ids = Ints{3, 3, 3, 0, 0};
  EXPECT_EQ(shard_batch(batch, options).packed_cu_seqlens, (Ints{0, 3, 8}));
  options.doc_ids.reset();
  EXPECT_EQ(shard_batch(batch, options).packed_cu_seqlens, (Ints{0, 2, 4, 8}));
  EXPECT_EQ(shard_batch(batch, options).batch.count("attention_mask"), 0u);
  batch.erase("_packed_seq_ids");
  EXPECT_EQ(shard_batch(batch, options).packed_cu_seqlens, (Ints{0, 4, 8}));
  batch.erase("attention_mask");
  EXPECT_EQ(shard_batch(batch, options).packed_cu_seqlens, (Ints{0, 5, 8}));
}

TEST(ShardBatch, VisualTensorsFollowTheirTokens) {
  Batch batch = batch_of_five();
  batch["visual_pos_masks"] = tensor<std::uint8_t>(ElementType::boolean, {1, 5}, {0, 1, 1, 0, 1});
  batch["deepstack"] = tensor<float>(ElementType::f32, {3, 2}, {1, 1, 2, 2, 3, 3});
  ShardOptions options{.world_size = 2, .rank = 0};
  options.visual_tensors = {"deepstack"};
  EXPECT_EQ(values<float>(shard_batch(batch, options).batch.at("deepstack")), (std::vector<float>{1, 1, 2, 2}));
  options.rank = 1;
  const ShardedBatch out = shard_batch(batch, options);
  EXPECT_EQ(values<float>(out.batch.at("deepstack")), (std::vector<float>{3, 3}));
  EXPECT_EQ(values<std::uint8_t>(out.batch.at("visual_pos_masks")), (std::vector<std::uint8_t>{1, 0, 0, 0}));
  batch["deepstack"].shape = {2, 3};
  expect_error(ErrorCode::invalid_argument, {"deepstack", "3 rows"}, [&] { shard_batch(batch, options); });
  batch.erase("visual_pos_masks");
  expect_error(ErrorCode::invalid_argument, {"visual_pos_masks"}, [&] { shard_batch(batch, options); });
}

TEST(ShardBatch, FurtherAlignedTensors) {
  Batch batch = batch_of_five();
  batch["weights"] = tensor<float>(ElementType::f32, {5, 1}, {1, 2, 3, 4, 5});
  ShardOptions options{.world_size = 2, .rank = 1};
  options.aligned["weights"] = {0, 0.5};
  EXPECT_EQ(values<float>(shard_batch(batch, options).batch.at("weights")),
            (std::vector<float>{5, 0.5, 0.5, 0.5}));
  options.aligned["nothing"] = {};
  expect_error(ErrorCode::invalid_argument, {"aligned names \"nothing\""},
               [&] { shard_batch(batch, options); });
}

TEST(ShardBatch, Errors) {
  const ShardOptions two{.world_size = 2};
  Batch batch = batch_of_five();
  batch["labels"] = tensor<std::int64_t>(ElementType::i64, {1, 4}, {0, 1, 2, 3});
  expect_error(ErrorCode::invalid_argument, {"labels", "[1, 4]", "not row aligned"},
               [&] { shard_batch(batch, two); });
  batch = batch_of_five();
  batch["_packed_seq_ids"] = tensor<std::int64_t>(ElementType::i64, {1, 5}, {1, 0, 2, 2, 0});
  expect_error(ErrorCode::invalid_layout, {"doc_ids[1] is 0"}, [&] { shard_batch(batch, two); });
  batch["_packed_seq_ids"] = tensor<float>(ElementType::f32, {1, 5}, {1, 1, 2, 2, 0});
  expect_error(ErrorCode::invalid_argument, {"_packed_seq_ids has floating"}, [&] { shard_batch(batch, two); });
  batch = batch_of_five();
  batch["input_ids"].shape = {5};
  expect_error(ErrorCode::invalid_argument, {"input_ids has shape [5]"}, [&] { shard_batch(batch, two); });
  batch = batch_of_five();
  expect_error(ErrorCode::invalid_argument, {"rank is 2"},
               [&] { shard_batch(batch, {.world_size = 2, .rank = 2}); });
  ShardOptions ids = two;
  ids.doc_ids = Ints{1, 1};
  expect_error(ErrorCode::invalid_argument, {"doc_ids has 2 entries", "allowed: 5"},
               [&] { shard_batch(batch, ids); });
}

TEST(ShardBatch, WorldOneTakesManySequences) {
  const Batch batch = {{"input_ids", tensor<std::int64_t>(ElementType::i64, {2, 2}, {1, 2, 3, 4})}};
  const ShardedBatch out = shard_batch(batch, {});
  EXPECT_EQ(values<std::int64_t>(out.batch.at("input_ids")), (Ints{1, 2, 3, 4}));
  EXPECT_TRUE(out.doc_ids.empty());
  EXPECT_EQ(out.length.padded, 2);
}

}  // namespace
}  // namespace bdcp
