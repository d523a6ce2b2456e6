// The room that work lists keep for later layouts is enough for every one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/backend.h"
#include "attention/harness.h"
#include "attention/hopper_backward_work.h"
#include "attention/hopper_work.h"
#include "attention/portable_work.h"
#include "attention/reference_work.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

using attention::GraphRoom;

plan::RankPlan plan_of(const DocLayout& layout) {
  return plan::make_rank_plan(layout, plan::make_global_plan(layout), 0);
}

void expect_fits(const DocLayout& layout) {
  const plan::RankPlan plan = plan_of(layout);
  const GraphRoom room{std::max<std::int64_t>(1, layout.documents())};
  EXPECT_LE(plan.segments.size(), room.segments());
  const CallShape shape = make_shape(4, 2, 64, DType::bf16);
  const auto reference = attention::make_reference_work(plan, shape);
  EXPECT_LE(reference.rows.local.size(), room.pieces(plan.rows, attention::kReferenceRows));
  EXPECT_LE(reference.keys.local.size(), room.pieces(plan.key_rows, attention::kReferenceRows));
  EXPECT_TRUE(reference.rows.remote.empty() && reference.keys.remote.empty());
  for (const int rows : {8, 32, 128})
    for (const int keys : {32, 128})
      for (const bool share : {false, true}) {
        const plan::TileOptions tiles{.rows = rows, .keys = keys, .share_short = share};
        EXPECT_LE(attention::make_query_tiles(plan, tiles).items.size(), room.pieces(plan.rows, rows));
        EXPECT_LE(attention::make_dq_tiles(plan, tiles, keys).items.size(), room.pieces(plan.rows, rows));
        EXPECT_LE(attention::make_key_tiles(plan, keys, share).items.size(), room.pieces(plan.key_rows, keys));
        const auto chunks = attention::make_row_chunks(plan, keys);
        EXPECT_LE(chunks.items.size(), room.pieces(plan.rows, attention::kRowsPerChunk, 2));
        for (const auto& chunk : chunks.items)
          EXPECT_TRUE(chunk.kind != kernel::kRowsSummed || plan.key_rows > keys);
        const auto forward = attention::make_hopper_work(plan, rows, keys, share);
        EXPECT_LE(forward.tiles.size(), room.pieces(plan.rows, rows));
        EXPECT_LE(forward.visible.size(), room.each(plan.rows));
        const auto backward = attention::make_hopper_backward_work(
            plan, {.rows = rows, .keys = keys, .share = share, .whole_chunks = true});
        EXPECT_LE(backward.tiles.items.size(), room.pieces(plan.key_rows, keys));
        EXPECT_LE(backward.key_rows.size(), room.each(plan.key_rows));
        EXPECT_LE(backward.chunks.items.size(), room.pieces(plan.rows, rows, 2));
        EXPECT_LE(backward.sum_blocks, plan.key_rows > keys ? room.pieces(plan.rows, rows) : 0);
      }
}

TEST(GraphRoom, NoneUnlessWanted) {
  const GraphRoom none;
  EXPECT_EQ(none.pieces(1000, 32) + none.each(1000) + none.segments(), 0u);
}

TEST(GraphRoom, HoldsEverySquareLayout) {
  RandomLayouts random(4);
  for (int i = 0; i < 120; ++i) {
    const LayoutCase c = random.next(1, 700);
    SCOPED_TRACE(::testing::PrintToString(c));
    expect_fits(c.layout());
  }
  expect_fits(LayoutCase{"all padding", {}, 300, 1}.layout());
}

TEST(GraphRoom, HoldsEveryRectangularLayout) {
  RandomLayouts random(5);
  for (int i = 0; i < 120; ++i) {
    const RectangularCase c = random.next_rectangular(9, 150);
    SCOPED_TRACE(::testing::PrintToString(c.cu_q) + ::testing::PrintToString(c.cu_k));
    expect_fits(c.layout());
  }
}

}  // namespace
}  // namespace bdcp::test
