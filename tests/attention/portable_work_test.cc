// Work lists of the portable backward: every key position and every row exactly once, every visible pair in its
// tile.
#include "attention/portable_work.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/harness.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

void expect_complete(const plan::RankPlan& plan, int keys, bool share) {
  const auto tiles = attention::make_key_tiles(plan, keys, share);
  const auto chunks = attention::make_row_chunks(plan, keys);
  std::vector<int> key_seen(static_cast<std::size_t>(plan.remote_len + plan.key_rows)),
      row_seen(static_cast<std::size_t>(plan.rows));
  std::vector<int> kind(static_cast<std::size_t>(plan.rows), kernel::kRowsZero), tiles_of_row(kind.size());
  for (const auto& chunk : chunks.items)
    for (int r = chunk.begin; r < chunk.end; ++r) {
      ++row_seen[static_cast<std::size_t>(r)];
      kind[static_cast<std::size_t>(r)] = chunk.kind;
    }
  for (std::size_t i = 0; i < tiles.items.size(); ++i) {
    const auto& t = tiles.items[i];
    ASSERT_LE(t.k_end - t.k_begin, keys);
    const bool remote = i >= tiles.local_count;
    for (int k = t.k_begin; k < t.k_end; ++k) ++key_seen[static_cast<std::size_t>(k)];
    for (int r = t.q_begin; r < t.q_end; ++r) {
      ++tiles_of_row[static_cast<std::size_t>(r)];
      if (t.whole) {
        EXPECT_NE(kind[static_cast<std::size_t>(r)], kernel::kRowsSummed);
      }
    }
    for (int s = t.seg_begin; s < t.seg_end; ++s) {
      EXPECT_EQ(remote, s < plan.remote_segments());
      const plan::Segment& segment = plan.segments[static_cast<std::size_t>(s)];
      for (int r = segment.q_begin; r < segment.q_end; ++r) {
        const int end = segment.k_end - (segment.q_end - 1 - r);
        const bool sees_any = std::min(end, t.k_end) > std::max(segment.k_begin, t.k_begin);
        if (sees_any) {
          EXPECT_TRUE(r >= t.q_begin && r < t.q_end);
        }
        if (r >= t.full_begin && r < t.full_end) {
          EXPECT_TRUE(t.k_end - t.k_begin == keys && end >= t.k_end && segment.k_begin <= t.k_begin);
        }
      }
    }
  }
  EXPECT_TRUE(std::all_of(key_seen.begin(), key_seen.end(), [](int n) { return n == 1; }));
  EXPECT_TRUE(std::all_of(row_seen.begin(), row_seen.end(), [](int n) { return n == 1; }));
  for (std::size_t r = 0; r < kind.size(); ++r)
    if (kind[r] == kernel::kRowsWhole) {
      EXPECT_EQ(tiles_of_row[r], 1) << r;
    }
}

TEST(PortableWork, SquareLayoutsOfAnyWorld) {
  RandomLayouts random(11);
  for (int i = 0; i < 60; ++i) {
    const LayoutCase one = random.next(1 + i % 5, 600, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank)
      expect_complete(plan::make_rank_plan(layout, global, rank), i % 2 ? 64 : 16, i % 3 != 0);
  }
}

TEST(PortableWork, RectangularLayouts) {
  RandomLayouts random(12);
  for (int i = 0; i < 40; ++i) {
    const DocLayout layout = random.next_rectangular(8, 150).layout();
    expect_complete(plan::make_rank_plan(layout, plan::make_global_plan(layout), 0), i % 2 ? 64 : 16,
                    i % 3 != 0);
  }
}

}  // namespace
}  // namespace bdcp::test
