#include "plan/tile_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "plan/cost_order.h"
#include "plan/document_groups.h"
#include "support/expect_error.h"
#include "support/layouts.h"

namespace bdcp::plan {
namespace {

using test::RandomLayouts;

/// How often each (row, key position) is computed when every tile visits its blocks as a kernel does: unmasked
/// blocks count for all rows, the others through the segment rule.
std::vector<int> visits(const RankPlan& plan, const TileSchedule& schedule, int block) {
  const std::int64_t keys = plan.remote_len + plan.key_rows;
  std::vector<int> count(static_cast<std::size_t>(plan.rows * keys), 0);
  for (const Tile& tile : schedule.tiles) {
    for (std::int32_t begin = tile.k_begin; begin < tile.k_end; begin += block) {
      const std::int32_t end = std::min(begin + block, tile.k_end);
      const bool full = begin >= tile.full_begin && begin + block <= tile.full_end;
      for (std::int32_t row = tile.q_begin; row < tile.q_end; ++row) {
        for (std::int32_t key = begin; key < end; ++key) {
          bool visible = full;
          for (std::int32_t s = tile.seg_begin; !full && s < tile.seg_end; ++s) {
            const Segment& segment = plan.segments[s];
            visible =
                visible || (row >= segment.q_begin && row < segment.q_end && key >= segment.k_begin &&
                            key < segment.k_end &&
                            key - segment.k_begin <= row - segment.q_begin + segment.keys() - segment.rows());
          }
          if (visible) ++count[static_cast<std::size_t>(row * keys + key)];
        }
      }
    }
  }
  return count;
}

/// The mask from the definition; layouts are small.
std::vector<int> allowed(const DocLayout& layout, const RankPlan& plan) {
  const std::int64_t keys = plan.remote_len + plan.key_rows;
  std::vector<int> count(static_cast<std::size_t>(plan.rows * keys), 0);
  for (std::int64_t document = 0; document < layout.documents(); ++document) {
    const std::int64_t q0 = layout.cu_q()[document], q1 = layout.cu_q()[document + 1];
    const std::int64_t k0 = layout.cu_k()[document], k1 = layout.cu_k()[document + 1];
    for (std::int64_t row = 0; row < plan.rows; ++row) {
      const std::int64_t q = plan.range.row_offset + row;
      if (q < q0 || q >= q1) continue;
      for (std::int64_t k = k0; k < k1; ++k) {
        if (k - k0 <= q - q0 + (k1 - k0) - (q1 - q0))
          count[static_cast<std::size_t>(row * keys + k - plan.range.s_first)] = 1;
      }
    }
  }
  return count;
}

void expect_exact_cover(const DocLayout& layout, const TileOptions& options, const std::string& what) {
  const GlobalPlan global = make_global_plan(layout);
  for (int rank = 0; rank < global.world; ++rank) {
    SCOPED_TRACE(what + ", rank " + std::to_string(rank) + ", tile " + std::to_string(options.rows) + "x" +
                 std::to_string(options.keys));
    const RankPlan plan = make_rank_plan(layout, global, rank);
    const TileSchedule schedule = make_tile_schedule(plan, options);
    const DocumentGroups groups = group_documents(plan, options.group_rows);
    EXPECT_EQ(schedule_guard(plan, schedule), "");
    EXPECT_TRUE(visits(plan, schedule, options.keys) == allowed(layout, plan));
    std::vector<int> rows(static_cast<std::size_t>(plan.rows), 0);
    for (std::size_t i = 0; i < schedule.tiles.size(); ++i) {
      const Tile& tile = schedule.tiles[i];
      EXPECT_LE(tile.q_end - tile.q_begin, options.rows);
      for (std::int32_t row = tile.q_begin; row < tile.q_end; ++row) ++rows[row];
      const bool first_of_part = i == 0 || i == static_cast<std::size_t>(schedule.local_tiles);
      if (!first_of_part) {
        const Tile& before = schedule.tiles[i - 1];
        const int group = groups.of(tile.seg_begin), group_before = groups.of(before.seg_begin);
        EXPECT_LE(group_before, group);
        EXPECT_TRUE(group_before < group || before.cost() > tile.cost() ||
                    (before.cost() == tile.cost() && before.q_begin < tile.q_begin));
      }
      // A tile of the remote part holds nothing but the segment with remote keys, and the local part none of
      // it.
      EXPECT_EQ(tile.remote, tile.seg_begin < plan.remote_segments());
      if (tile.remote) {
        EXPECT_EQ(tile.seg_end, 1);
      }
    }
    EXPECT_EQ(rows, std::vector<int>(rows.size(), 1));
  }
}

const std::vector<TileOptions>& tile_options() {
  static const std::vector<TileOptions> options = {{8, 8, true},      {16, 4, true}, {4, 16, true},
                                                   {8, 8, false},     {1, 1, true},  {128, 128, true},
                                                   {8, 8, true, 0, 1}};
  return options;
}

TEST(TileSchedule, CoversEveryAllowedPairOnce) {
  RandomLayouts random(2);
  for (int world = 1; world <= 9; ++world) {
    for (int kind = 0; kind < RandomLayouts::kKinds; ++kind) {
      const test::LayoutCase one = random.next(world, 18 * world + 30, kind);
      for (const TileOptions& options : tile_options()) {
        expect_exact_cover(one.layout(), options, testing::PrintToString(one));
      }
    }
  }
}

TEST(TileSchedule, CoversRectangularLayoutsOnce) {
  RandomLayouts random(3);
  for (int i = 0; i < 150; ++i) {
    const test::RectangularCase one = random.next_rectangular(7, 20);
    const std::string what = "q " + testing::PrintToString(one.cu_q) + " k " + testing::PrintToString(one.cu_k);
    for (const TileOptions& options : tile_options()) expect_exact_cover(one.layout(), options, what);
  }
}

TEST(TileSchedule, ShortDocumentsShareTiles) {
  const std::vector<std::int64_t> lengths(8192, 1);
  const DocLayout layout = DocLayout::from_lengths(lengths, {});
  const RankPlan plan = make_rank_plan(layout, make_global_plan(layout), 0);
  EXPECT_EQ(make_tile_schedule(plan).tiles.size(), 64u);
  EXPECT_EQ(make_tile_schedule(plan, {.share_short = false}).tiles.size(), 8192u);
}

TEST(TileSchedule, SharedTilesDoNotMultiplyKeys) {
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  for (int i = 0; i < 64; ++i) {  // decoding: one query, many keys each
    cu_q.push_back(cu_q.back() + 1);
    cu_k.push_back(cu_k.back() + 1000);
  }
  const DocLayout layout = DocLayout::from_cu_seqlens(cu_q, cu_k, {});
  const RankPlan plan = make_rank_plan(layout, make_global_plan(layout), 0);
  std::int64_t cost = 0;
  for (const Tile& tile : make_tile_schedule(plan).tiles) cost += tile.cost();
  EXPECT_EQ(cost, 64 * 1000);
}

TEST(TileSchedule, UnmaskedBlocksOfALongDocument) {
  const std::vector<std::int64_t> lengths = {1024};
  const DocLayout layout = DocLayout::from_lengths(lengths, {});
  const RankPlan plan = make_rank_plan(layout, make_global_plan(layout), 0);
  const TileSchedule schedule = make_tile_schedule(plan);
  ASSERT_EQ(schedule.tiles.size(), 8u);
  EXPECT_EQ(schedule.tiles[0].q_begin, 896);
  EXPECT_EQ(schedule.tiles[0].full_end, 896);
  EXPECT_EQ(schedule.tiles[0].k_end, 1024);
}

TEST(TileSchedule, RefusesEmptyTiles) {
  test::expect_error(ErrorCode::invalid_argument, {"0 rows"}, [] { make_tile_schedule({}, {.rows = 0}); });
  test::expect_error(ErrorCode::invalid_argument, {"-1 keys"}, [] { make_tile_schedule({}, {.keys = -1}); });
}

LayoutClass class_of(const std::vector<std::int64_t>& lengths) {
  const DocLayout layout = DocLayout::from_lengths(lengths, {});
  return classify(make_rank_plan(layout, make_global_plan(layout), 0));
}

TEST(LayoutClass, ByWhereTheRowsAre) {
  EXPECT_EQ(class_of({}), LayoutClass::single);
  EXPECT_EQ(class_of({5}), LayoutClass::single);
  EXPECT_EQ(class_of({16384}), LayoutClass::single);
  EXPECT_EQ(class_of({4096, 4096, 30}), LayoutClass::long_docs);
  EXPECT_EQ(class_of(std::vector<std::int64_t>(2048, 16)), LayoutClass::tiny);
  EXPECT_EQ(class_of(std::vector<std::int64_t>(300, 100)), LayoutClass::short_docs);
  EXPECT_EQ(class_of({762, 30, 350, 350, 1536, 762, 2048, 150, 350, 30, 350, 762, 30, 350, 332}),
            LayoutClass::mixed);
  EXPECT_STREQ(to_string(LayoutClass::short_docs), "short_docs");
}

TEST(CostOrder, SortsAsAStableSortDoes) {
  std::mt19937_64 engine(5);
  const std::uint64_t most[] = {0, 1, 7, 1023, 1024, std::uint64_t{1} << 40, ~std::uint64_t{0} >> 1};
  for (const std::uint64_t limit : most)
    for (const int low_zeros : {0, 9})
      for (const std::size_t count : {0u, 1u, 2u, 300u, 5000u}) {
        std::vector<std::pair<std::int64_t, int>> items;
        for (std::size_t i = 0; i < count; ++i)
          items.emplace_back(static_cast<std::int64_t>(((engine() & limit) >> low_zeros) << low_zeros),
                             static_cast<int>(i));
        auto expected = items;
        std::stable_sort(expected.begin(), expected.end(),
                         [](const auto& a, const auto& b) { return a.first > b.first; });
        sort_costliest_first(items, [](const auto& item) { return item.first; });
        EXPECT_EQ(items, expected) << limit;
      }
}

}  // namespace
}  // namespace bdcp::plan
