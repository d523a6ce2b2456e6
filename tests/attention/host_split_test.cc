#include <gtest/gtest.h>

#include "attention/split.h"

namespace bdcp::test {
namespace {

void expect_split(const std::vector<std::int64_t>& lengths, int world, DType dtype, double dropout_p = 0) {
  Case c;
  std::int64_t real = 0;
  for (const std::int64_t length : lengths) real += length;
  const std::int64_t multiple = 2 * world;
  c.layout = from_lengths(lengths, (multiple - real % multiple) % multiple + multiple, "split");
  c.shape = make_shape(6, 2, 12, dtype, 8);
  c.shape.dropout_p = dropout_p;
  c.dropout = {99, 3};
  const Data data = make_data(c);
  for (const bool payload_f32 : {true, false}) {
    attention::Options options;
    options.payload_f32 = payload_f32;
    expect_ranks_equal_whole(c, data, world, options, [&](const plan::RankPlan& plan) {
      // Backends own nothing of what they prepare.
      std::shared_ptr<const attention::PreparedAttention> prepared =
          attention::make_host_backend()->prepare(c.shape, plan, options, {});
      return prepared;
    });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HostSplit, OneDocumentOverAllRanks) { expect_split({150}, 4, DType::f32); }
TEST(HostSplit, EdgesOnChunkEdges) {
  expect_split({40, 40, 40}, 3, DType::f32);
  expect_split({39, 41, 40}, 3, DType::bf16);
  expect_split({41, 39, 41}, 3, DType::f16);
}
TEST(HostSplit, AllPaddingRanks) { expect_split({5, 2}, 8, DType::f32); }
TEST(HostSplit, OneTokenDocuments) { expect_split(std::vector<std::int64_t>(30, 1), 4, DType::bf16); }
TEST(HostSplit, ManyLengths) {
  expect_split({3, 90, 17, 1, 66, 7}, 2, DType::bf16);
  expect_split({3, 90, 17, 1, 66, 7}, 5, DType::f32);
  expect_split({130, 9, 9}, 7, DType::f16);
}
TEST(HostSplit, DropoutMasksArePositionsInThePackedSequence) { expect_split({30, 65, 12}, 3, DType::f32, 0.4); }

}  // namespace
}  // namespace bdcp::test
