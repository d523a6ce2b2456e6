#include "plan/exchange_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace bdcp::plan {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::size_t index_of(BackendKind kind) {
  for (std::size_t i = 0; i < kBackendOrder.size(); ++i) {
    if (kBackendOrder[i] == kind) return i;
  }
  return kBackendOrder.size();
}

PathFacts facts_of(int world) {
  PathFacts facts;
  facts.ranks.resize(world);
  for (RankFacts& rank : facts.ranks) rank.host = "node0";
  facts.needed_tokens = 10;
  facts.allgather_tokens = 100;
  return facts;
}

void refuse(PathFacts& facts, int rank, BackendKind kind, const std::string& code, const std::string& text) {
  facts.ranks[rank].backends[index_of(kind)] = {false, code, text};
}

TEST(Select, RequestedPathsStand) {
  for (const ExchangePath path : {ExchangePath::allgather, ExchangePath::halo, ExchangePath::a2a}) {
    PathFacts facts = facts_of(4);
    facts.requested = path;
    const Decision decision = select(facts);
    EXPECT_EQ(decision.path, path);
    EXPECT_EQ(decision.requested_path, path);
    EXPECT_THAT(decision.downgrades, IsEmpty());
    EXPECT_NE(decision.reason, "");
  }
}

TEST(Select, AutoMovesLess) {
  struct Case {
    std::int64_t needed, allgather;
    bool halo_feasible;
    ExchangePath expect;
  };
  for (const Case& one : {Case{10, 100, true, ExchangePath::halo}, Case{10, 100, false, ExchangePath::a2a},
                          Case{100, 100, true, ExchangePath::allgather}, Case{0, 100, true, ExchangePath::halo},
                          Case{0, 0, true, ExchangePath::allgather}}) {
    PathFacts facts = facts_of(2);
    facts.needed_tokens = one.needed;
    facts.allgather_tokens = one.allgather;
    facts.halo_feasible = one.halo_feasible;
    const Decision decision = select(facts);
    EXPECT_EQ(decision.path, one.expect) << one.needed << " " << one.allgather;
    EXPECT_THAT(decision.downgrades, IsEmpty());
  }
}

TEST(Select, OneRankIsLocalWhateverWasAsked) {
  PathFacts facts = facts_of(1);
  facts.requested = ExchangePath::halo;
  facts.ranks_per_node = 1;
  const Decision decision = select(facts);
  EXPECT_EQ(decision.path, ExchangePath::local);
  EXPECT_EQ(decision.requested_path, ExchangePath::halo);
  EXPECT_THAT(decision.downgrades, IsEmpty());
}

TEST(Select, InfeasibleHaloGoesToAllToAll) {
  PathFacts facts = facts_of(4);
  facts.requested = ExchangePath::halo;
  facts.halo_feasible = false;
  facts.halo_infeasible_rank = 2;
  const Decision decision = select(facts);
  EXPECT_EQ(decision.path, ExchangePath::a2a);
  ASSERT_EQ(decision.downgrades.size(), 1u);
  EXPECT_EQ(decision.downgrades[0].from, "halo");
  EXPECT_EQ(decision.downgrades[0].to, "a2a");
  EXPECT_EQ(decision.downgrades[0].code, "halo_infeasible");
  EXPECT_EQ(decision.downgrades[0].rank, 2);
  facts.requested = ExchangePath::a2a;  // which does not care
  EXPECT_THAT(select(facts).downgrades, IsEmpty());
}

TEST(Select, CrossNodeIsJudgedFromHosts) {
  PathFacts facts = facts_of(4);
  facts.ranks[2].host = facts.ranks[3].host = "node1";
  EXPECT_EQ(count_nodes(facts), 2);
  for (const ExchangePath path : {ExchangePath::halo, ExchangePath::a2a}) {
    facts.requested = path;
    facts.halo_feasible = false;  // a cross-node halo was never going to be planned: one downgrade, not two
    const Decision decision = select(facts);
    EXPECT_EQ(decision.path, ExchangePath::allgather);
    ASSERT_EQ(decision.downgrades.size(), 1u);
    EXPECT_EQ(decision.downgrades[0].code, "cross_node");
    EXPECT_EQ(decision.downgrades[0].to, "allgather");
    EXPECT_THAT(decision.downgrades[0].text, HasSubstr("rank 2 on node1"));
  }
  facts.requested = ExchangePath::allgather;
  EXPECT_THAT(select(facts).downgrades, IsEmpty());
  facts.requested = ExchangePath::automatic;
  EXPECT_EQ(select(facts).path, ExchangePath::allgather);
  EXPECT_THAT(select(facts).downgrades, IsEmpty());
  facts.needed_only_across_nodes = true;
  EXPECT_EQ(select(facts).path, ExchangePath::a2a);
  facts.requested = ExchangePath::a2a;
  EXPECT_THAT(select(facts).downgrades, IsEmpty());
}

TEST(Select, RanksPerNodeOverridesHosts) {
  PathFacts facts = facts_of(5);
  facts.requested = ExchangePath::a2a;
  facts.ranks_per_node = 2;
  EXPECT_EQ(count_nodes(facts), 3);
  EXPECT_EQ(select(facts).path, ExchangePath::allgather);
  EXPECT_THAT(select(facts).downgrades.at(0).text, HasSubstr("5 ranks at 2 per node span 3 nodes"));
  facts.ranks_per_node = 8;
  for (std::size_t i = 0; i < facts.ranks.size(); ++i) facts.ranks[i].host = std::to_string(i);
  EXPECT_EQ(select(facts).path, ExchangePath::a2a);
  facts.ranks_per_node = 0;
  test::expect_error(ErrorCode::invalid_argument, {"ranks_per_node is 0"}, [&] { select(facts); });
}

TEST(Select, AutoBackendRecordsWhatItPassesOver) {
  PathFacts facts = facts_of(3);
  facts.requested = ExchangePath::allgather;
  EXPECT_EQ(select(facts).backend, BackendKind::hopper);
  refuse(facts, 1, BackendKind::hopper, "head_dim", "head_dim 300 is above 256");
  refuse(facts, 2, BackendKind::hopper, "arch", "later rank");
  refuse(facts, 2, BackendKind::portable, "not_built", "no portable backend");
  const Decision decision = select(facts);
  EXPECT_EQ(decision.backend, BackendKind::reference);
  ASSERT_EQ(decision.downgrades.size(), 2u);
  EXPECT_EQ(decision.downgrades[0],
            (Downgrade{"hopper", "reference", "backend_skipped",
                       "rank 1 on node0 cannot run hopper: head_dim: head_dim 300 is above 256", 1}));
  EXPECT_EQ(decision.downgrades[1].from, "portable");
  EXPECT_EQ(decision.downgrades[1].rank, 2);
}

TEST(Select, NamedBackendThatSomeRankLacks) {
  PathFacts facts = facts_of(2);
  facts.requested = ExchangePath::allgather;
  facts.backend = BackendKind::reference;
  EXPECT_EQ(select(facts).backend, BackendKind::reference);
  EXPECT_THAT(select(facts).downgrades, IsEmpty());
  refuse(facts, 1, BackendKind::reference, "device", "requires CUDA");
  Decision decision = select(facts);
  EXPECT_EQ(decision.backend, BackendKind::host);
  EXPECT_EQ(decision.requested_backend, BackendKind::reference);
  ASSERT_EQ(decision.downgrades.size(), 1u);
  EXPECT_EQ(decision.downgrades[0].code, "backend_unavailable");
  EXPECT_EQ(decision.downgrades[0].from, "reference");
  EXPECT_EQ(decision.downgrades[0].to, "host");
  EXPECT_EQ(decision.downgrades[0].rank, 1);
  // Nothing after the named one works: earlier ones are tried too.
  refuse(facts, 0, BackendKind::host, "device", "tensors are in device memory");
  decision = select(facts);
  EXPECT_EQ(decision.backend, BackendKind::hopper);
  EXPECT_EQ(decision.downgrades.size(), 1u);
}

TEST(Select, NoBackendAtAllIsAnErrorThatNamesAll) {
  PathFacts facts = facts_of(2);
  for (const BackendKind kind : kBackendOrder) refuse(facts, 1, kind, "dtype", "no such dtype");
  test::expect_error(ErrorCode::backend_unavailable,
                     {"hopper", "portable", "reference", "host", "rank 1", "dtype"}, [&] { select(facts); });
}

TEST(Select, BackendDowngradesComeFirst) {
  PathFacts facts = facts_of(2);
  facts.requested = ExchangePath::halo;
  facts.halo_feasible = false;
  refuse(facts, 0, BackendKind::hopper, "arch", "sm_80");
  const Decision decision = select(facts);
  ASSERT_EQ(decision.downgrades.size(), 2u);
  EXPECT_EQ(decision.downgrades[0].code, "backend_skipped");
  EXPECT_EQ(decision.downgrades[1].code, "halo_infeasible");
}

TEST(Select, NeedsRanks) {
  test::expect_error(ErrorCode::invalid_argument, {"ranks is empty"}, [] { select({}); });
}

TEST(PlanFacts, ComeFromThePlan) {
  const std::vector<std::int64_t> lengths = {4, 12};
  PathFacts facts;
  add_plan_facts(make_global_plan(DocLayout::from_lengths(lengths, {.world_size = 4})), facts);
  EXPECT_FALSE(facts.halo_feasible);
  EXPECT_EQ(facts.halo_infeasible_rank, 3);
  EXPECT_EQ(facts.needed_tokens, 4 + 8);
  EXPECT_EQ(facts.allgather_tokens, 3 * 4 * 4);
}

}  // namespace
}  // namespace bdcp::plan
