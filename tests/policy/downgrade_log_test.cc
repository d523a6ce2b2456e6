#include "policy/downgrade_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "policy_support.h"

namespace bdcp::policy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using OnDowngrade = PolicyValues::OnDowngrade;

const Downgrade kHalo{"halo", "a2a", "halo_infeasible", "document 7 reaches 900 tokens left", 3};
const Downgrade kBackend{"hopper", "reference", "backend_unavailable", "needs sm_90a", 1};
const Downgrade kNodes{"halo", "allgather", "cross_node", "2 nodes", -1};

class DowngradeLogTest : public testing::Test {
 protected:
  void record(std::vector<Downgrade> downgrades) {
    log_.record(downgrades, policy_, sink_, [this](const Event& event) { events_.push_back(event); });
  }
  DowngradeLog log_;
  PolicyValues policy_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::vector<Event> events_;
  Log sink_{Log::Level::info, [this](Log::Level level, std::string_view line) {
              const std::lock_guard lock(mutex_);
              EXPECT_EQ(level, Log::Level::warn);
              lines_.emplace_back(line);
            }};
};

TEST_F(DowngradeLogTest, WhatWasNotDowngradedIsNotReported) {
  record({});
  EXPECT_THAT(log_.counts(), IsEmpty());
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(DowngradeLogTest, WarnLogsEachDistinctOneOnceAndCountsAll) {
  Downgrade other_rank = kHalo, other_text = kHalo;
  other_rank.rank = 4;
  other_text.text = "document 9 reaches 901 tokens left";
  record({kHalo, kNodes});
  record({kHalo, other_text});
  record({other_rank});
  EXPECT_THAT(
      lines_,
      ElementsAre("downgrade: halo -> a2a (halo_infeasible, rank 3): document 7 reaches 900 tokens left",
                  "downgrade: halo -> allgather (cross_node, whole group): 2 nodes", HasSubstr("rank 4")));
  EXPECT_THAT(log_.counts(), ElementsAre(Pair("cross_node", 1u), Pair("halo_infeasible", 4u)));
  ASSERT_EQ(events_.size(), 3u);
  EXPECT_EQ(events_[0].kind, "downgrade");
  EXPECT_EQ(events_[0].text, to_string(kHalo));
}

TEST_F(DowngradeLogTest, SilentOnlyCounts) {
  policy_.on_downgrade["halo_infeasible"] = OnDowngrade::silent;
  record({kHalo});
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(log_.counts(), ElementsAre(Pair("halo_infeasible", 1u)));
}

TEST_F(DowngradeLogTest, ErrorRefusesAndNamesEverything) {
  policy_.on_downgrade["halo_infeasible"] = OnDowngrade::error;
  try {
    record({kHalo, kNodes});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::downgrade_refused);
    EXPECT_EQ(error.scope(), ErrorScope::step);
    EXPECT_EQ(error.origin_rank(), 3);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("halo -> a2a"), HasSubstr("halo_infeasible"), HasSubstr("rank 3"),
                      HasSubstr("document 7 reaches"), HasSubstr("on_downgrade.halo_infeasible is \"error\"")));
  }
  EXPECT_EQ(lines_.size(), 1u) << "the other downgrade is still logged";
  EXPECT_EQ(log_.counts().at("halo_infeasible"), 1u);
}

TEST_F(DowngradeLogTest, ABackendAskedForByNameHasItsOwnCode) {
  const std::string message = test::error_of([&] { record({kBackend}); }, ErrorCode::backend_unavailable);
  EXPECT_THAT(message, AllOf(HasSubstr("hopper -> reference"), HasSubstr("needs sm_90a"), HasSubstr("rank 1")));
  policy_.on_downgrade["backend_unavailable"] = OnDowngrade::warn;
  EXPECT_NO_THROW(record({kBackend}));
}

TEST_F(DowngradeLogTest, DefaultActionAppliesToOtherCodes) {
  policy_.on_downgrade["default"] = OnDowngrade::error;
  EXPECT_THAT(test::error_of([&] { record({kNodes}); }, ErrorCode::downgrade_refused),
              HasSubstr("on_downgrade.default is \"error\""));
}

TEST_F(DowngradeLogTest, ManyThreadsLogOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) log_.record(std::vector{kHalo, kNodes}, policy_, sink_);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 2u);
  EXPECT_EQ(log_.counts().at("halo_infeasible"), 1600u);
}

}  // namespace
}  // namespace bdcp::policy
