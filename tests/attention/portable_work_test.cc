// Work lists of the portable backward: every key position and every row exactly once, every visible pair in its
// tile.
#include "attention/portable_work.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/harness.h"
#include "attention/portable_config.h"
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

// Rows of segments with more than `keys` keys are in exactly one dQ tile, other rows in none; nothing is
// shared.
void expect_dq_tiles(const plan::RankPlan& plan, int keys) {
  const plan::TileOptions options{.rows = 16, .keys = 32};
  const auto tiles = attention::make_dq_tiles(plan, options, keys);
  std::vector<int> seen(static_cast<std::size_t>(plan.rows)), expected(seen.size());
  for (const plan::Segment& s : plan.segments)
    if (s.keys() > keys) std::fill(expected.begin() + s.q_begin, expected.begin() + s.q_end, 1);
  for (std::size_t i = 0; i < tiles.items.size(); ++i) {
    const auto& t = tiles.items[i];
    ASSERT_EQ(t.seg_end - t.seg_begin, 1);
    EXPECT_EQ(i >= tiles.local_count, t.k_end > t.k_begin && t.k_begin < plan.remote_len);
    EXPECT_LE(t.q_end - t.q_begin, options.rows);
    for (int r = t.q_begin; r < t.q_end; ++r) ++seen[static_cast<std::size_t>(r)];
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(attention::make_query_tiles(plan, options).items.size(),
            plan::make_tile_schedule(plan, options).tiles.size());
}

TEST(PortableWork, SquareLayoutsOfAnyWorld) {
  RandomLayouts random(11);
  for (int i = 0; i < 60; ++i) {
    const LayoutCase one = random.next(1 + i % 5, 600, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank) {
      const plan::RankPlan plan = plan::make_rank_plan(layout, global, rank);
      expect_complete(plan, i % 2 ? 64 : 16, i % 3 != 0);
      expect_dq_tiles(plan, i % 2 ? 64 : 16);
    }
  }
}

TEST(PortableWork, RectangularLayouts) {
  RandomLayouts random(12);
  for (int i = 0; i < 40; ++i) {
    const DocLayout layout = random.next_rectangular(8, 150).layout();
    const plan::RankPlan plan = plan::make_rank_plan(layout, plan::make_global_plan(layout), 0);
    expect_complete(plan, i % 2 ? 64 : 16, i % 3 != 0);
    expect_dq_tiles(plan, i % 2 ? 64 : 16);
  }
}

TEST(PortableConfig, EveryHeadDimFitsEveryArch) {
  using namespace attention;
  for (const char* arch : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_120"})
    for (int dim = 8; dim <= 256; dim += 8)
      for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
        const CallShape shape = make_shape(8, 2, dim, DType::bf16, dim_v);
        const int limit = shared_memory_limit(arch);
        for (const bool short_documents : {false, true})
          ASSERT_LE(portable_forward_smem(shape, portable_forward_config(shape, arch, short_documents)), limit)
              << arch << " " << dim << " " << dim_v;
        ASSERT_LE(portable_backward_smem(shape, portable_backward_config(shape, arch)), limit)
            << arch << " " << dim << " " << dim_v;
        const PortableDqConfig dq = portable_dq_config(shape, arch);
        ASSERT_LE(portable_dq_smem(shape, dq) * dq.ctas, limit) << arch << " " << dim << " " << dim_v;
      }
}

}  // namespace
}  // namespace bdcp::test
