// The reference's cases about batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bdcp/batch.h"
#include "support/expect_error.h"
#include "support/host_tensors.h"
#include "support/reference_cases.h"

namespace bdcp {
namespace {

using nlohmann::json;
using test::find_case;
using test::reference_cases;
using test::tensor;
using test::values;
using Ints = std::vector<std::int64_t>;

const json& batch_case(const std::string& id) { return find_case(reference_cases().at("batch"), id); }

HostTensor zeros(ElementType type, Ints shape) {
  HostTensor out{type, std::move(shape), {}};
  out.data.resize(static_cast<std::size_t>(out.elements()) * size_of(type));
  return out;
}

TEST(BatchReferenceCases, PaddingMask) {
  const json& one = batch_case("batch-padmask");
  const auto labels = one.at("labels").get<Ints>(), ids = one.at("packed_seq_ids").get<Ints>();
  const Batch batch = {{"inputs_embeds", zeros(ElementType::f32, {1, 5, 3})},
                       {"labels", tensor(ElementType::i64, {1, 5}, labels)},
                       {"_packed_seq_ids", tensor(ElementType::i64, {1, 5}, ids)}};
  const ShardedBatch out = shard_batch(batch, {.world_size = one.at("world"), .rank = one.at("rank")});
  const json& expect = one.at("expect");
  EXPECT_EQ(out.length.original, expect.at("original_seq_len"));
  EXPECT_EQ(out.length.padded, expect.at("padded_seq_len"));
  EXPECT_EQ(out.row_offset, expect.at("row_offset"));
  std::vector<std::uint8_t> mask;
  for (const bool padding : expect.at("padding_mask")) mask.push_back(padding);
  EXPECT_EQ(values<std::uint8_t>(out.batch.at("padding_mask")), mask);
  EXPECT_EQ(values<std::int64_t>(out.batch.at("labels")), expect.at("labels").get<Ints>());
  EXPECT_EQ(out.doc_ids, expect.at("doc_ids_full").get<Ints>());
  EXPECT_EQ(out.packed_cu_seqlens, expect.at("packed_cu_seqlens").get<Ints>());
  EXPECT_EQ(out.batch.at("inputs_embeds").shape, (Ints{1, 4, 3}));
}

TEST(BatchReferenceCases, OnePackedSequence) {
  const json& one = batch_case("batch-b2");
  const Batch batch = {{"inputs_embeds", zeros(ElementType::f32, {2, 4, 3})}};
  test::expect_error(ErrorCode::invalid_argument,
                     {one.at("message_contains").get<std::string>(), "2 packed sequences"},
                     [&] { shard_batch(batch, {.world_size = one.at("world"), .rank = one.at("rank")}); });
}

TEST(BatchReferenceCases, DocIdsFromTwoDimensionalMask) {
  const json& one = batch_case("batch-docids-2d");
  const auto mask = one.at("attention_mask").get<Ints>();
  const Batch batch = {{"input_ids", zeros(ElementType::i64, {1, 5})},
                       {"attention_mask", tensor(ElementType::i64, {1, 5}, mask)}};
  EXPECT_EQ(shard_batch(batch, {}).doc_ids, one.at("expect").at("doc_ids").get<Ints>());
  const std::vector<std::uint8_t> flags(mask.begin(), mask.end());
  const Batch booleans = {{"input_ids", zeros(ElementType::i64, {1, 5})},
                          {"attention_mask", tensor(ElementType::boolean, {1, 5}, flags)}};
  EXPECT_EQ(shard_batch(booleans, {}).doc_ids, one.at("expect").at("doc_ids").get<Ints>());
}

// Differs from the reference on purpose: the diagonal of a 4-D mask merges documents, so it is refused.
TEST(BatchReferenceCases, FourDimensionalMaskIsRefused) {
  ASSERT_TRUE(batch_case("batch-docids-4d").contains("attention_mask_4d"));
  const Batch batch = {{"input_ids", zeros(ElementType::i64, {1, 4})},
                       {"attention_mask", zeros(ElementType::boolean, {1, 1, 4, 4})}};
  for (const int world : {1, 2}) {
    test::expect_error(ErrorCode::invalid_argument, {"attention_mask has shape [1, 1, 4, 4]", "4-D"},
                       [&] { shard_batch(batch, {.world_size = world}); });
  }
}

TEST(BatchReferenceCases, ExactlyOnePrimary) {
  for (const char* id : {"batch-both-primary", "batch-no-primary"}) {
    const json& one = batch_case(id);
    Batch batch;
    for (const std::string key : one.at("keys")) batch[key] = zeros(ElementType::i64, {1, 4});
    test::expect_error(ErrorCode::invalid_argument, {one.at("message_contains").get<std::string>()},
                       [&] { shard_batch(batch, {.world_size = 2}); });
  }
}

TEST(BatchReferenceCases, WorldOneLeavesTheBatchAlone) {
  const json& one = batch_case("batch-world1");
  Batch batch = {{"input_ids", zeros(ElementType::i64, {1, 5})}, {"labels", zeros(ElementType::i64, {1, 5})}};
  const ShardedBatch out = shard_batch(batch, {.world_size = one.at("world")});
  ASSERT_EQ(out.batch.size(), batch.size());
  for (const auto& [name, before] : batch) EXPECT_EQ(out.batch.at(name).data, before.data);
  EXPECT_EQ(out.length.original, 5);
  EXPECT_EQ(out.length.padded, 5);
}

}  // namespace
}  // namespace bdcp
