// The work list of the Hopper forward: every row in one tile, and what the kernel derives from a tile is what
// the row sees.
#include "attention/hopper_work.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/harness.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

using kernel::HopperTile;
using kernel::KeyRange;

/// As the plan says; {0, 0} without keys.
KeyRange seen_by(const plan::RankPlan& plan, int row) {
  for (const plan::Segment& s : plan.segments) {
    const int end = s.k_end - (s.q_end - 1 - row);
    if (row >= s.q_begin && row < s.q_end && end > s.k_begin) return {s.k_begin, end};
  }
  return {0, 0};
}

/// As the kernel reads the tile.
KeyRange seen_in(const attention::HopperWork& work, const HopperTile& tile, int row) {
  if (tile.rows_at >= 0) return work.visible.at(static_cast<std::size_t>(tile.rows_at + row - tile.q_begin));
  const int end = std::min(row + tile.shift + 1, tile.k_end);
  return end > tile.k_begin ? KeyRange{tile.k_begin, end} : KeyRange{0, 0};
}

void expect_complete(const plan::RankPlan& plan, int tokens, int keys, bool share) {
  const auto work = attention::make_hopper_work(plan, tokens, keys, share);
  std::vector<int> seen(static_cast<std::size_t>(plan.rows));
  for (std::size_t i = 0; i < work.tiles.size(); ++i) {
    const HopperTile& tile = work.tiles[i];
    ASSERT_LE(tile.q_end - tile.q_begin, tokens);
    if (tile.rows_at >= 0) {
      EXPECT_TRUE(share);
      EXPECT_LE(tile.k_end - tile.k_begin, keys);  // the kernel takes shared tiles apart within one block
      EXPECT_EQ(tile.unmasked, 0);
    }
    if (tile.k_end > tile.k_begin) {
      EXPECT_EQ(tile.k_begin < plan.remote_len, i >= work.local_count);
    }
    for (int row = tile.q_begin; row < tile.q_end; ++row) {
      ++seen[static_cast<std::size_t>(row)];
      const KeyRange expected = seen_by(plan, row), range = seen_in(work, tile, row);
      EXPECT_EQ(range.begin, expected.begin) << row;
      EXPECT_EQ(range.end, expected.end) << row;
      EXPECT_LE(range.end, std::max(tile.k_end, 0)) << row;
      if (tile.unmasked > 0) {
        EXPECT_GE(range.end, tile.k_begin + tile.unmasked * keys) << row;
      }
    }
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST(HopperWork, SquareLayoutsOfAnyWorld) {
  RandomLayouts random(21);
  for (int i = 0; i < 60; ++i) {
    const LayoutCase one = random.next(1 + i % 5, 900, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank)
      expect_complete(plan::make_rank_plan(layout, global, rank), i % 2 ? 192 : 32, i % 4 < 2 ? 128 : 64,
                      i % 3 != 0);
  }
}

TEST(HopperWork, RectangularLayouts) {
  RandomLayouts random(22);
  for (int i = 0; i < 40; ++i) {
    const DocLayout layout = random.next_rectangular(8, 250).layout();
    expect_complete(plan::make_rank_plan(layout, plan::make_global_plan(layout), 0), i % 2 ? 128 : 18,
                    i % 4 < 2 ? 160 : 80, i % 3 != 0);
  }
}

TEST(HopperWork, TheOpeningIsOfTheLastTilesAndAFourthAtMost) {
  std::vector<kernel::HopperTile> tiles;
  for (const int keys : {1000, 500, 100, 20, 10, 0}) {
    kernel::HopperTile tile{};
    tile.q_end = 10;
    tile.k_begin = 7;
    tile.k_end = 7 + keys;
    tiles.push_back(tile);
  }
  EXPECT_EQ(attention::cost(tiles[0]), 10000);
  EXPECT_EQ(attention::opening_tiles(tiles, 0), 0u);
  EXPECT_EQ(attention::opening_tiles(tiles, 1), 2u);  // the last has no keys
  EXPECT_EQ(attention::opening_tiles(tiles, 100), 2u);
  EXPECT_EQ(attention::opening_tiles(tiles, 301), 4u);
  EXPECT_EQ(attention::opening_tiles(tiles, 1301), tiles.size());  // 6300 of 16300
  EXPECT_EQ(attention::opening_tiles({}, 5), 0u);
}

}  // namespace
}  // namespace bdcp::test
