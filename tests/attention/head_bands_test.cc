#include "attention/head_bands.h"

#include <gtest/gtest.h>

namespace bdcp::attention {
namespace {

TEST(HeadBands, OfAFewHeadsHaveAllTilesEach) {
  EXPECT_EQ(head_bands(7, 2, 8).items, 14);
  EXPECT_EQ(head_bands(7, 2, 8).heads, 2);
}

TEST(HeadBands, OneOfAllHeadsNeverEnds) {
  for (const int few : {8, 9}) {
    EXPECT_EQ(head_bands(7, few, 8).items, 1 << 30);
    EXPECT_EQ(head_bands(7, few, 8).heads, 8);
  }
}

TEST(HeadBands, CapturedLaunchesTakeAllAndAGivenNumberIsTaken) {
  const std::vector<int> tiles{1, 2, 3};
  const CallShape shape{.heads_q = 8, .heads_kv = 4, .head_dim = 64};
  const auto load = [](int) { return TileLoad{1 << 20, 1}; };
  PrepareContext context;
  context.heads_at_once = 2;
  EXPECT_EQ(heads_at_once(part_of(tiles, 3, Part::local), shape, context, 1, 0, load), 2);
  context.room.documents = 5;
  EXPECT_EQ(heads_at_once(part_of(tiles, 3, Part::local), shape, context, 1, 0, load), 4);
}

TEST(HeadBands, LocalTilesComeFirst) {
  const std::vector<int> tiles{1, 2, 3};
  EXPECT_EQ(part_of(tiles, 2, Part::local).size(), 2u);
  EXPECT_EQ(part_of(tiles, 2, Part::remote).front(), 3);
  EXPECT_TRUE(part_of(tiles, 3, Part::remote).empty());
}

}  // namespace
}  // namespace bdcp::attention
