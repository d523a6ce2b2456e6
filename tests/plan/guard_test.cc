// Every way to damage a plan is noticed before a kernel sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan.h"
#include "plan/tile_schedule.h"

namespace bdcp::plan {
namespace {

using testing::HasSubstr;

RankPlan straddling_plan() {
  const std::vector<std::int64_t> lengths = {6, 5, 1};
  const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = 2, .padding_tokens = 3});
  const GlobalPlan global = make_global_plan(layout);
  return make_rank_plan(layout, global, 1);  // rows [8, 16): 2 keys remote
}

template <class Damage>
std::string after(Damage damage) {
  RankPlan plan = straddling_plan();
  EXPECT_EQ(plan_guard(plan), "");
  damage(plan);
  return plan_guard(plan);
}

TEST(PlanGuard, NamesWhatIsWrong) {
  EXPECT_THAT(after([](RankPlan& plan) { plan.range.n_real = 9; }), HasSubstr("outside query length 8"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.segments[1].q_end = 9; }), HasSubstr("segment 1 has rows"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.segments[1].q_begin = 2; }), HasSubstr("segment 1 has rows"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.segments[0].k_end = 40; }), HasSubstr("segment 0 has keys"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.segments.pop_back(); }), HasSubstr("segments end at row"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.shared_begin = 9; }), HasSubstr("shared_begin"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.meta.max_q = 1; }), HasSubstr("max_q"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.recvs[0].begin = 5; }), HasSubstr("does not continue"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.recvs.clear(); }), HasSubstr("remote keys end at"));
  EXPECT_THAT(after([](RankPlan& plan) { plan.sends = {{1, 0, 7, 2}}; }), HasSubstr("outside the rank's keys"));
}

template <class Damage>
std::string schedule_after(Damage damage) {
  const RankPlan plan = straddling_plan();
  TileSchedule schedule = make_tile_schedule(plan, {.rows = 2, .keys = 2});
  EXPECT_EQ(schedule_guard(plan, schedule), "");
  damage(schedule);
  return schedule_guard(plan, schedule);
}

TEST(ScheduleGuard, NamesWhatIsWrong) {
  EXPECT_THAT(schedule_after([](TileSchedule& s) { s.tiles[0].q_end = 99; }), HasSubstr("tile 0 has rows"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) { s.tiles[0].k_end = 99; }), HasSubstr("tile 0 has keys"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) { s.tiles[0].full_end = 99; }), HasSubstr("unmasked keys"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) { s.tiles[0].seg_end = 99; }),
              HasSubstr("tile 0 has segments"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) {
                s.tiles.erase(s.tiles.begin() + 1);
                --s.local_tiles;
              }),
              HasSubstr("tiles hold"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) { s.local_tiles = 99; }), HasSubstr("local_tiles is 99"));
  EXPECT_THAT(schedule_after([](TileSchedule& s) { ++s.local_tiles; }), HasSubstr("wrong side"));
}

TEST(MetadataGuard, ExactMaximaAndEnds) {
  VarlenMeta meta;
  meta.n_real = 5;
  meta.real_end = 8;
  meta.cu_q = {0, 2, 5};
  meta.cu_k = {0, 5, 8};
  meta.max_q = 3;
  meta.max_k = 5;
  EXPECT_EQ(metadata_guard(meta, 8, 8), "");
  const auto damaged = [&](auto damage) {
    VarlenMeta copy = meta;
    damage(copy);
    return metadata_guard(copy, 8, 8);
  };
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.max_q = 4; }), HasSubstr("max_q is 4"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.max_k = 4; }), HasSubstr("max_k is 4"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.n_real = 6; }), HasSubstr("cu_q ends at 5"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.real_end = 7; }), HasSubstr("cu_k ends at 8"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.real_end = 9; }), HasSubstr("outside key length 8"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.cu_k = {0, 8}; }), HasSubstr("2 and 1 segments"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.cu_q = {0}; }), HasSubstr("at least 2"));
  EXPECT_THAT(damaged([](VarlenMeta& m) { m.cu_k = {0}; }), HasSubstr("at least 2"));
  EXPECT_THAT(damaged([](VarlenMeta& m) {
                m.cu_k = {0, 8, 8};
              }),
              HasSubstr("cu_k must be strictly increasing"));
}

}  // namespace
}  // namespace bdcp::plan
