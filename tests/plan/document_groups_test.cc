// Which documents run together.
#include "plan/document_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "bdcp/doc_layout.h"
#include "plan/tile_schedule.h"

namespace bdcp::plan {
namespace {

RankPlan plan_of(const std::vector<std::int64_t>& lengths) {
  const DocLayout layout = DocLayout::from_lengths(lengths, {});
  return make_rank_plan(layout, make_global_plan(layout), 0);
}

TEST(DocumentGroups, OneWhereAllFit) {
  const RankPlan plan = plan_of({500, 600, 900});
  for (const std::int64_t rows : {0, -1, 2000, 5000}) {
    const DocumentGroups groups = group_documents(plan, rows);
    EXPECT_EQ(groups.count, 1);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(groups.of(i), 0);
  }
}

TEST(DocumentGroups, LongestFirstAndAsManyAsFit) {
  const RankPlan plan = plan_of({700, 5000, 300, 1200, 1300, 100});
  const DocumentGroups groups = group_documents(plan, 2500);
  EXPECT_EQ(groups.count, 3);  // 5000; 1300 + 1200; 700 + 300 + 100
  EXPECT_EQ(groups.of_segment, (std::vector<std::int32_t>{2, 0, 2, 1, 1, 2}));
  EXPECT_EQ(groups.of(6), 2);  // padding
}

TEST(DocumentGroups, RandomLayouts) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 1 + round % 40; ++i) lengths.push_back(random() % (i % 3 ? 300 : 6000));
    const std::int64_t rows = 1024 + static_cast<std::int64_t>(random() % 8000);
    const RankPlan plan = plan_of(lengths);
    const DocumentGroups groups = group_documents(plan, rows);
    std::map<int, std::int64_t> sums, counts, shortest, longest;
    for (std::size_t i = 0; i < plan.segments.size(); ++i) {
      const int group = groups.of(static_cast<std::int32_t>(i));
      const std::int64_t size = plan.segments[i].keys();
      shortest[group] = counts[group] ? std::min(shortest[group], size) : size;
      longest[group] = std::max(longest[group], size);
      sums[group] += size;
      ++counts[group];
    }
    ASSERT_EQ(static_cast<int>(sums.size()), plan.segments.empty() ? 0 : groups.count);
    for (const auto& [group, sum] : sums) {
      EXPECT_TRUE(sum <= rows || longest[group] == sum) << group;
      if (group > 0) {
        EXPECT_GE(shortest[group - 1], longest[group]);
        EXPECT_GT(sums[group - 1] + longest[group], rows) << "could have been one";
      }
    }
  }
}

TEST(DocumentGroups, TilesOfADocumentStayTogether) {
  const RankPlan plan = plan_of(std::vector<std::int64_t>(8, 4096));
  const TileSchedule schedule = make_tile_schedule(plan, {.group_rows = 4096});
  ASSERT_EQ(schedule.tiles.size(), 8u * 32);
  for (std::size_t i = 0; i < schedule.tiles.size(); ++i) {
    EXPECT_EQ(schedule.tiles[i].seg_begin, static_cast<int>(i / 32));
    EXPECT_EQ(schedule.tiles[i].cost(), 128 * 128 * (32 - static_cast<int>(i % 32)));
  }
}

}  // namespace
}  // namespace bdcp::plan
