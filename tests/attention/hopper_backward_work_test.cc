// The work list of the Hopper backward: every key position and every row exactly once, every visible pair in
// its tile, and what the kernel derives from a tile is what the rows see.
#include "attention/hopper_backward_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "attention/harness.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

using attention::HopperBackwardWork;
using kernel::HopperKeyRows;
using kernel::HopperKeyTile;
using plan::Segment;

bool sees(const Segment& s, int row, int key) {
  return row >= s.q_begin && row < s.q_end && key >= s.k_begin && key < s.k_end - (s.q_end - 1 - row);
}

/// As the kernel finds them.
HopperKeyRows rows_of(const HopperBackwardWork& work, const HopperKeyTile& tile, int key) {
  if (tile.rows_at >= 0) return work.key_rows.at(static_cast<std::size_t>(tile.rows_at + key - tile.k_begin));
  if (tile.seg_begin == tile.seg_end) return {0, 0, 0, 0};
  const Segment& one = work.segments[static_cast<std::size_t>(tile.seg_begin)];
  const int first = one.q_end - (one.k_end - key), begin = std::max(one.q_begin, first);
  return {begin, one.q_end, first >= one.q_begin && key == one.k_begin ? first + 1 : begin, 0};
}

void expect_complete(const plan::RankPlan& plan, int rows, int keys, bool share, bool whole_chunks,
                     std::int64_t group_rows = 0) {
  const HopperBackwardWork work = attention::make_hopper_backward_work(plan, {.rows = rows,
                                                                              .keys = keys,
                                                                              .share = share,
                                                                              .group_rows = group_rows,
                                                                              .split = group_rows > 0,
                                                                              .whole_chunks = whole_chunks,
                                                                              .stagger = 3});
  for (std::size_t i = 0; i < work.tiles.items.size(); ++i) {
    const HopperKeyTile& tile = work.tiles.items[i];
    const bool local = i < work.tiles.local_count;
    const bool first = local ? i < work.split_local : i < work.tiles.local_count + work.split_remote;
    EXPECT_EQ(first, group_rows > 0 && tile.sum_block >= 0) << i;
  }
  std::vector<int> row_seen(static_cast<std::size_t>(plan.rows)), row_kind(row_seen.size()),
      row_block(row_seen.size(), -1), whole_tiles(row_seen.size()),
      adding(row_seen.size());  // tiles that complete its dQ, that add to it
  std::vector<int> key_seen(static_cast<std::size_t>(plan.remote_len + plan.key_rows));
  std::vector<int> blocks(work.sum_blocks);
  for (const auto& chunk : work.chunks.items) {
    ASSERT_LE(chunk.end - chunk.begin, rows);
    ASSERT_EQ(chunk.sum_block >= 0, chunk.kind == kernel::kRowsSummed);
    if (chunk.sum_block >= 0) ++blocks.at(static_cast<std::size_t>(chunk.sum_block));
    for (int r = chunk.begin; r < chunk.end; ++r) {
      ++row_seen.at(static_cast<std::size_t>(r));
      row_kind[static_cast<std::size_t>(r)] = chunk.kind;
      // A row is at the same place of a block for the row kernels and for every tile.
      row_block[static_cast<std::size_t>(r)] =
          chunk.sum_block < 0 ? -1 : chunk.sum_block * rows + r - chunk.begin;
    }
  }
  EXPECT_TRUE(std::all_of(blocks.begin(), blocks.end(), [](int n) { return n == 1; }));
  std::map<int, int> next_index;           // of a segment's tiles
  std::map<int, std::vector<int>> adders;  // of a block: the indices of the tiles that add to it, as drawn
  for (std::size_t i = 0; i < work.tiles.items.size(); ++i) {
    const HopperKeyTile& tile = work.tiles.items[i];
    ASSERT_LE(tile.k_end - tile.k_begin, keys);
    EXPECT_TRUE(tile.rows_at < 0 || share);
    EXPECT_EQ(tile.rows_at >= 0, tile.seg_end - tile.seg_begin > 1);
    EXPECT_TRUE(tile.rows_at < 0 || tile.sum_block < 0);
    for (int s = tile.seg_begin; s < tile.seg_end; ++s)
      EXPECT_EQ(i >= work.tiles.local_count, s < plan.remote_segments());
    for (int k = tile.k_begin; k < tile.k_end; ++k) {
      ++key_seen.at(static_cast<std::size_t>(k));
      const HopperKeyRows who = rows_of(work, tile, k);
      for (int r = 0; r < plan.rows; ++r) {
        bool expected = false, alone = false;
        for (const Segment& s : plan.segments)
          if (sees(s, r, k)) expected = true, alone = s.k_end - (s.q_end - 1 - r) - s.k_begin == 1;
        ASSERT_EQ(r >= who.first && r < who.end, expected) << r << " " << k;
        ASSERT_EQ(r >= who.steep && r < who.end, expected && !alone) << r << " " << k;
        if (expected) {
          ASSERT_TRUE(r >= tile.q_begin && r < tile.q_end);
        }
        if (r >= tile.full_begin && r < tile.full_end) {
          ASSERT_TRUE(expected && tile.k_end - tile.k_begin == keys);
        }
      }
    }
    for (int r = tile.q_begin; r < tile.q_end; ++r) {
      ++(tile.sum_block < 0 ? whole_tiles : adding)[static_cast<std::size_t>(r)];
      if (tile.sum_block >= 0) {
        ASSERT_EQ(row_block[static_cast<std::size_t>(r)], tile.sum_block * rows + r - tile.q_begin);
      }
    }
    if (tile.sum_block < 0) continue;
    EXPECT_EQ(next_index[tile.seg_begin]++, tile.index);  // earlier ones are drawn earlier
    const Segment& one = work.segments[static_cast<std::size_t>(tile.seg_begin)];
    const int row_blocks = (one.rows() + rows - 1) / rows;
    EXPECT_EQ(tile.start, tile.q_begin == one.q_begin && row_blocks > 0 ? tile.index * 3 % row_blocks : 0);
    for (int block = 0; block * rows < tile.q_end - tile.q_begin; ++block)
      adders[tile.sum_block + block].push_back(tile.index);
  }
  for (const auto& [block, indices] : adders)  // each waits for all before it
    for (std::size_t i = 0; i < indices.size(); ++i) EXPECT_EQ(indices[i], static_cast<int>(i));
  EXPECT_TRUE(std::all_of(key_seen.begin(), key_seen.end(), [](int n) { return n == 1; }));
  for (std::size_t r = 0; r < row_kind.size(); ++r) {
    if (row_kind[r] == kernel::kRowsWhole) {
      EXPECT_EQ(whole_tiles[r], 1) << r;
      EXPECT_EQ(row_seen[r], whole_chunks ? 1 : 0) << r;
    } else {
      EXPECT_EQ(row_seen[r], 1) << r;
    }
    if (row_kind[r] == kernel::kRowsSummed) {
      EXPECT_EQ(whole_tiles[r], 0) << r;
    }
    const bool any = std::any_of(plan.segments.begin(), plan.segments.end(), [&](const Segment& s) {
      return s.keys() > 0 && sees(s, static_cast<int>(r), s.k_begin);
    });
    EXPECT_EQ(row_kind[r] != kernel::kRowsZero, any) << r;
    if (!any) {  // whatever its own document's tensors hold, its dQ is zero
      EXPECT_EQ(whole_tiles[r] + adding[r], 0) << r;
    }
  }
}

TEST(HopperBackwardWork, SquareLayoutsOfAnyWorld) {
  RandomLayouts random(31);
  for (int i = 0; i < 60; ++i) {
    const LayoutCase one = random.next(1 + i % 5, 400, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank)
      expect_complete(plan::make_rank_plan(layout, global, rank), i % 4 < 2 ? 64 : 16, i % 2 ? 128 : 32,
                      i % 3 != 0, i % 7 < 3, i % 5 * 20);
  }
}

TEST(HopperBackwardWork, RectangularLayouts) {
  RandomLayouts random(32);
  for (int i = 0; i < 60; ++i) {
    const DocLayout layout = random.next_rectangular(8, 150).layout();
    expect_complete(plan::make_rank_plan(layout, plan::make_global_plan(layout), 0), i % 4 < 2 ? 64 : 16,
                    i % 2 ? 128 : 32, i % 3 != 0, i % 7 < 3);
  }
}

}  // namespace
}  // namespace bdcp::test
