// Tiles taken apart at the first block without remote keys: both items together are the tile.
#include "attention/hopper_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/layouts.h"

namespace bdcp::test {
namespace {

using attention::cost;
using attention::HopperWork;
using kernel::HopperTile;

std::vector<HopperTile> sorted(std::vector<HopperTile> tiles) {
  std::sort(tiles.begin(), tiles.end(),
            [](const HopperTile& a, const HopperTile& b) { return a.q_begin < b.q_begin; });
  return tiles;
}

/// The tiles of `work` with the items of one tile put together again.
std::vector<HopperTile> together(const HopperWork& work, int remote_len, int keys) {
  std::vector<HopperTile> tiles;
  std::map<int, HopperTile> local;
  for (std::size_t i = 0; i < work.tiles.size(); ++i) {
    HopperTile tile = work.tiles[i];
    EXPECT_EQ(tile.state > 0, i < work.local_count && tile.state != 0);
    if (tile.state > 0) {
      EXPECT_GE(tile.k_begin, remote_len);
      EXPECT_TRUE(local.emplace(tile.state, tile).second);
      continue;
    }
    if (tile.state < 0) {
      const auto found = local.find(-tile.state);
      if (found == local.end()) {
        ADD_FAILURE() << "nothing was kept as state " << -tile.state;
        continue;
      }
      const HopperTile& other = found->second;
      EXPECT_EQ(other.q_begin, tile.q_begin);
      EXPECT_EQ(other.shift, tile.shift);
      EXPECT_EQ(other.k_begin, tile.k_end);
      EXPECT_EQ((tile.k_end - tile.k_begin) % keys, 0);
      EXPECT_LT(tile.k_end - keys, remote_len);  // no block that could have been local
      EXPECT_GT(other.k_end, other.k_begin);
      tile.k_end = other.k_end;
      tile.unmasked += other.unmasked;
      tile.state = 0;
      local.erase(found);
    }
    tiles.push_back(tile);
  }
  EXPECT_TRUE(local.empty());
  return sorted(tiles);
}

void expect_same(const std::vector<HopperTile>& a, const std::vector<HopperTile>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].q_begin, b[i].q_begin);
    EXPECT_EQ(a[i].q_end, b[i].q_end);
    EXPECT_EQ(a[i].k_begin, b[i].k_begin);
    EXPECT_EQ(a[i].k_end, b[i].k_end);
    EXPECT_EQ(a[i].unmasked, b[i].unmasked);
    EXPECT_EQ(a[i].shift, b[i].shift);
    EXPECT_EQ(a[i].rows_at, b[i].rows_at);
  }
}

std::int64_t pairs_of(const HopperWork& work) {
  std::int64_t pairs = 0;
  for (const HopperTile& tile : work.tiles)
    if (tile.state > 0) pairs += cost(tile);
  return pairs;
}

TEST(HopperStages, ItemsTogetherAreTheTile) {
  RandomLayouts random(71);
  std::size_t staged = 0;
  for (int i = 0; i < 80; ++i) {
    const LayoutCase one = random.next(2 + i % 4, 3000, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank) {
      const plan::RankPlan plan = plan::make_rank_plan(layout, global, rank);
      const int keys = i % 2 ? 160 : 64;
      const HopperWork before = attention::make_hopper_work(plan, i % 3 ? 32 : 128, keys, true);
      HopperWork work = before;
      const std::size_t states =
          attention::stage_tiles(work, plan.remote_len, keys, std::int64_t{1} << 40, 1000);
      staged += states;
      EXPECT_EQ(work.tiles.size(), before.tiles.size() + states);
      EXPECT_EQ(work.local_count, before.local_count + states);
      expect_same(together(work, static_cast<int>(plan.remote_len), keys), sorted(before.tiles));
      // Local documents keep their order, which is by groups that fit the cache.
      const auto local_of = [](const HopperWork& of, std::size_t from) {
        return std::vector<HopperTile>(of.tiles.begin() + static_cast<std::ptrdiff_t>(from),
                                       of.tiles.begin() + static_cast<std::ptrdiff_t>(of.local_count));
      };
      expect_same(local_of(work, states), local_of(before, 0));
    }
  }
  EXPECT_GT(staged, 100u);
}

TEST(HopperStages, AsMuchAsIsAskedFor) {
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{65536}, {.world_size = 2});
  const plan::RankPlan plan = plan::make_rank_plan(layout, plan::make_global_plan(layout), 1);
  const HopperWork before = attention::make_hopper_work(plan, 32, 160, true);
  for (const std::int64_t pairs : {std::int64_t{1}, std::int64_t{20'000'000}, std::int64_t{100'000'000}}) {
    HopperWork work = before;
    const std::size_t states = attention::stage_tiles(work, plan.remote_len, 160, pairs, 100'000);
    const std::int64_t longest = 32 * 32768;
    EXPECT_GE(pairs_of(work), pairs - longest);
    EXPECT_LE(pairs_of(work), pairs * 21 / 20 + longest);
    // Of all lengths, longest first.
    EXPECT_TRUE(std::is_sorted(work.tiles.begin(), work.tiles.begin() + static_cast<std::ptrdiff_t>(states),
                               [](const HopperTile& a, const HopperTile& b) { return cost(a) > cost(b); }));
    if (states > 10) {
      EXPECT_LT(cost(work.tiles[states - 1]), longest / 8);
    }
  }
  HopperWork work = before;
  EXPECT_EQ(attention::stage_tiles(work, plan.remote_len, 160, std::int64_t{1} << 40, 7), 7u);
  work = before;
  EXPECT_EQ(attention::stage_tiles(work, plan.remote_len, 160, 0, 100), 0u);
  expect_same(work.tiles, before.tiles);
  EXPECT_EQ(attention::stage_tiles(work, plan.remote_len, 160, 1000, 0), 0u);
  expect_same(work.tiles, before.tiles);
}

}  // namespace
}  // namespace bdcp::test
