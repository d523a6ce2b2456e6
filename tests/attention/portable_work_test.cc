// Work lists of the portable backend against brute force over all pairs: every visible pair in one tile, every
// key position and row served once, and what tiles claim about themselves is so.
#include "attention/portable_work.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/harness.h"
#include "attention/portable_config.h"
#include "plan/tile_schedule.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

using kernel::PortableKeyTile;
using plan::RankPlan;
using plan::Segment;

/// Which rows see which key positions, and the segment of each (-1: padding).
struct Pairs {
  int rows, keys;
  std::vector<char> seen;
  std::vector<int> row_segment, key_segment;
  explicit Pairs(const RankPlan& plan)
      : rows(static_cast<int>(plan.rows)),
        keys(static_cast<int>(plan.remote_len + plan.key_rows)),
        seen(static_cast<std::size_t>(rows) * static_cast<std::size_t>(keys)),
        row_segment(static_cast<std::size_t>(rows), -1),
        key_segment(static_cast<std::size_t>(keys), -1) {
    for (std::size_t s = 0; s < plan.segments.size(); ++s) {
      const Segment& segment = plan.segments[s];
      for (int k = segment.k_begin; k < segment.k_end; ++k)
        key_segment[static_cast<std::size_t>(k)] = static_cast<int>(s);
      for (int i = 0; i < segment.rows(); ++i) {
        row_segment[static_cast<std::size_t>(segment.q_begin + i)] = static_cast<int>(s);
        for (int j = 0; j < segment.keys(); ++j)
          at(segment.q_begin + i, segment.k_begin + j) = j <= i + segment.keys() - segment.rows();
      }
    }
  }
  char& at(int row, int key) {
    return seen[static_cast<std::size_t>(row) * static_cast<std::size_t>(keys) + static_cast<std::size_t>(key)];
  }
};

void expect_sorted(const std::vector<PortableKeyTile>& tiles, std::size_t begin, std::size_t end) {
  const auto cost = [](const PortableKeyTile& t) {
    return std::int64_t{t.k_end - t.k_begin} * (t.q_end - t.q_begin);
  };
  for (std::size_t i = begin + 1; i < end; ++i) EXPECT_GE(cost(tiles[i - 1]), cost(tiles[i]));
}

void expect_key_tiles(const RankPlan& plan, Pairs& pairs, int keys, bool share, std::vector<int>& whole_of,
                      std::vector<int>& part_of) {
  const auto list = attention::make_key_tiles(plan, keys, share);
  std::vector<int> key_seen(static_cast<std::size_t>(pairs.keys));
  std::vector<char> covered(pairs.seen.size());
  ASSERT_LE(list.local_count, list.items.size());
  expect_sorted(list.items, 0, list.local_count);
  expect_sorted(list.items, list.local_count, list.items.size());
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const PortableKeyTile& t = list.items[i];
    SCOPED_TRACE(testing::Message() << "tile of keys " << t.k_begin << " to " << t.k_end);
    ASSERT_LT(t.k_begin, t.k_end);
    ASSERT_LE(t.k_end - t.k_begin, keys);
    EXPECT_TRUE(share || t.seg_end - t.seg_begin <= 1);
    for (int k = t.k_begin; k < t.k_end; ++k) {
      ++key_seen[static_cast<std::size_t>(k)];
      const int s = pairs.key_segment[static_cast<std::size_t>(k)];
      EXPECT_TRUE(s < 0 ? t.seg_begin == t.seg_end : s >= t.seg_begin && s < t.seg_end) << "key " << k;
      EXPECT_EQ(i >= list.local_count, s >= 0 && s < plan.remote_segments()) << "key " << k;
    }
    bool all_here = t.seg_begin < t.seg_end;  // all keys of its segments
    for (int s = t.seg_begin; s < t.seg_end; ++s) {
      const Segment& segment = plan.segments[static_cast<std::size_t>(s)];
      all_here = all_here && segment.k_begin >= t.k_begin && segment.k_end <= t.k_end;
    }
    EXPECT_EQ(t.whole != 0, all_here);
    for (int r = t.q_begin; r < t.q_end; ++r) {
      const int s = pairs.row_segment[static_cast<std::size_t>(r)];
      EXPECT_TRUE(s >= t.seg_begin && s < t.seg_end) << "row " << r;
      ++(t.whole ? whole_of : part_of)[static_cast<std::size_t>(r)];
      bool full = t.k_end - t.k_begin == keys && t.seg_end - t.seg_begin == 1;
      for (int k = t.k_begin; k < t.k_end; ++k) {
        full = full && pairs.at(r, k);
        covered[static_cast<std::size_t>(r) * static_cast<std::size_t>(pairs.keys) +
                static_cast<std::size_t>(k)] += 1;
      }
      // Claimed where it is so, and nowhere else: a mask too few is wrong, one too many is slow.
      EXPECT_EQ(r >= t.full_begin && r < t.full_end, full) << "row " << r;
    }
  }
  for (int k = 0; k < pairs.keys; ++k) EXPECT_EQ(key_seen[static_cast<std::size_t>(k)], 1) << "key " << k;
  for (std::size_t i = 0; i < covered.size(); ++i)
    ASSERT_LE(pairs.seen[i], covered[i]) << "row " << i / static_cast<std::size_t>(pairs.keys) << " key "
                                         << i % static_cast<std::size_t>(pairs.keys) << " is in no tile";
}

void expect_row_chunks(const RankPlan& plan, Pairs& pairs, int keys, const std::vector<int>& whole_of,
                       const std::vector<int>& part_of) {
  const auto list = attention::make_row_chunks(plan, keys);
  std::vector<int> seen(static_cast<std::size_t>(pairs.rows));
  for (std::size_t i = 0; i < list.items.size(); ++i)
    for (int r = list.items[i].begin; r < list.items[i].end; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r);
      const auto row = static_cast<std::size_t>(r);
      const int s = pairs.row_segment[row], kind = list.items[i].kind;
      ++seen[row];
      EXPECT_EQ(i >= list.local_count, s >= 0 && s < plan.remote_segments());
      bool sees = false;
      for (int k = 0; k < pairs.keys; ++k) sees = sees || pairs.at(r, k);
      EXPECT_EQ(kind == kernel::kRowsZero, !sees);
      if (kind == kernel::kRowsWhole) {  // one tile writes its dQ, nobody adds
        EXPECT_TRUE(whole_of[row] == 1 && part_of[row] == 0);
      } else if (kind == kernel::kRowsSummed) {
        EXPECT_EQ(whole_of[row], 0);
      } else {
        EXPECT_EQ(part_of[row], 0);
      }
    }
  for (int r = 0; r < pairs.rows; ++r) EXPECT_EQ(seen[static_cast<std::size_t>(r)], 1) << "row " << r;
}

/// Forward: blocks count from k_begin, and the kernel skips the mask of those inside [full_begin, full_end).
void expect_forward_tiles(const RankPlan& plan, Pairs& pairs, const plan::TileOptions& options) {
  const plan::TileSchedule schedule = plan::make_tile_schedule(plan, options);
  EXPECT_EQ(plan::schedule_guard(plan, schedule), "");
  std::vector<int> tile_of(static_cast<std::size_t>(pairs.rows), -1);
  for (std::size_t i = 0; i < schedule.tiles.size(); ++i) {
    const plan::Tile& t = schedule.tiles[i];
    SCOPED_TRACE(testing::Message() << "tile of rows " << t.q_begin << " to " << t.q_end);
    EXPECT_LE(t.q_end - t.q_begin, options.rows);
    for (int r = t.q_begin; r < t.q_end; ++r) {
      EXPECT_EQ(tile_of[static_cast<std::size_t>(r)], -1) << "row " << r << " twice";
      tile_of[static_cast<std::size_t>(r)] = static_cast<int>(i);
      for (int k = 0; k < pairs.keys; ++k)
        EXPECT_TRUE(!pairs.at(r, k) || (k >= t.k_begin && k < t.k_end)) << "row " << r << " key " << k;
      for (int block = t.k_begin; block < t.k_end; block += options.keys)
        for (int k = block; k < std::min(block + options.keys, pairs.keys); ++k)
          EXPECT_TRUE(block < t.full_begin || block + options.keys > t.full_end || pairs.at(r, k))
              << "row " << r << " key " << k;
    }
  }
  EXPECT_TRUE(std::all_of(tile_of.begin(), tile_of.end(), [](int i) { return i >= 0; }));
}

void expect_work(const RankPlan& plan, int turn) {
  Pairs pairs(plan);
  const int keys[] = {16, 64, 128, 32}, tokens[] = {128, 42, 25, 8, 64, 18}, blocks[] = {64, 48, 128, 32};
  std::vector<int> whole_of(static_cast<std::size_t>(pairs.rows)), part_of(whole_of);
  expect_key_tiles(plan, pairs, keys[turn % 4], turn % 3 != 0, whole_of, part_of);
  expect_row_chunks(plan, pairs, keys[turn % 4], whole_of, part_of);
  expect_forward_tiles(plan, pairs,
                       {.rows = tokens[turn % 6], .keys = blocks[turn % 4], .share_short = turn % 3 != 0});
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
  for (int i = 0; i < 120; ++i) {
    const LayoutCase one = random.next(1 + i % 5, 600, i % RandomLayouts::kKinds);
    SCOPED_TRACE(testing::Message() << one << ", turn " << i);
    const DocLayout layout = one.layout();
    const plan::GlobalPlan global = plan::make_global_plan(layout);
    for (int rank = 0; rank < one.world; ++rank)
      if (HasFailure()) return;
  }
}

TEST(PortableWork, RectangularLayouts) {
  RandomLayouts random(12);
  for (int i = 0; i < 80; ++i) {
    const DocLayout layout = random.next_rectangular(8, i % 2 ? 150 : 20).layout();
    SCOPED_TRACE(testing::Message() << "turn " << i);
    const RankPlan plan = plan::make_rank_plan(layout, plan::make_global_plan(layout), 0);
    expect_work(plan, i);
    expect_dq_tiles(plan, i % 2 ? 64 : 16);
    if (HasFailure()) return;
  }
}

TEST(PortableWork, TrickyLayouts) {
  for (const RaggedLayout& layout : tricky_layouts())
    for (int turn = 0; turn < 12; ++turn) {
      SCOPED_TRACE(layout.name + ", turn " + std::to_string(turn));
      expect_work(single_rank_plan(layout), turn);
      if (HasFailure()) return;
    }
}

TEST(PortableConfig, EveryHeadDimFitsEveryArch) {
  using namespace attention;
  for (const char* arch : {"sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_120"})
    for (int dim = 8; dim <= 256; dim += 8)
      for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
        const CallShape shape = make_shape(8, 2, dim, DType::bf16, dim_v);
        const int limit = shared_memory_limit(arch);
        for (const bool short_documents : {false, true}) {
          const PortableForwardConfig c = portable_forward_config(shape, arch, short_documents);
          ASSERT_LE(portable_forward_smem(shape, c), limit) << arch << " " << dim << " " << dim_v;
          // A CTA that counts on a second one beside it really has one.
          ASSERT_LE(c.ctas * (portable_forward_smem(shape, c) + 1024), shared_memory_of_sm(arch))
              << arch << " " << dim << " " << dim_v;
        }
        ASSERT_LE(portable_backward_smem(shape, portable_backward_config(shape, arch)), limit)
            << arch << " " << dim << " " << dim_v;
        const PortableDqConfig dq = portable_dq_config(shape, arch);
        ASSERT_LE(dq.ctas * (portable_dq_smem(shape, dq) + 1024), shared_memory_of_sm(arch))
            << arch << " " << dim << " " << dim_v;
      }
}

}  // namespace
}  // namespace bdcp::test
