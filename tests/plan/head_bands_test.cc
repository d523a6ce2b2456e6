#include "plan/head_bands.h"

#include <gtest/gtest.h>

namespace bdcp::plan {
namespace {

HeadBandFacts facts(int heads, std::int64_t tiles) {
  // One document: tile i visits i blocks.
  return {.heads = heads,
          .longest_bytes = 2000,
          .cache_bytes = 1000,
          .total_cost = tiles * (tiles + 1) / 2,
          .longest_cost = tiles,
          .sms = 132};
}

TEST(HeadBands, LongDocumentsTakeOneHeadAtATime) { EXPECT_EQ(heads_at_once(facts(8, 512)), 1); }

TEST(HeadBands, DocumentsThatFitTheCacheTakeAll) {
  HeadBandFacts small = facts(8, 512);
  small.longest_bytes = small.cache_bytes;
  EXPECT_EQ(heads_at_once(small), 8);
}

TEST(HeadBands, TheLastBandKeepsEverySmBusyForItsCostliestTile) {
  EXPECT_EQ(heads_at_once(facts(8, 128)), 4);  // 2 would do for 131 tiles
  EXPECT_EQ(heads_at_once(facts(8, 131)), 2);
  EXPECT_EQ(heads_at_once(facts(8, 10)), 8);  // no number does
  EXPECT_EQ(heads_at_once(facts(6, 128)), 3);
  EXPECT_EQ(heads_at_once(facts(7, 128)), 7);
  EXPECT_EQ(heads_at_once(facts(1, 128)), 1);
}

TEST(HeadBands, HugeCostsDoNotOverflow) {
  HeadBandFacts huge = facts(8, 1);
  huge.total_cost = huge.longest_cost = std::int64_t{1} << 62;
  EXPECT_EQ(heads_at_once(huge), 8);
  huge.longest_cost = std::int64_t{1} << 54;
  EXPECT_EQ(heads_at_once(huge), 1);
}

}  // namespace
}  // namespace bdcp::plan
