// The reference's cases about path selection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/exchange_path.h"
#include "support/reference_cases.h"

namespace bdcp::plan {
namespace {

using nlohmann::json;
using test::find_case;
using test::reference_cases;
using testing::HasSubstr;
using testing::IsEmpty;

const json& selector_case(const std::string& id) { return find_case(reference_cases().at("selector"), id); }

PathFacts facts_of(ExchangePath requested, int world = 2) {
  PathFacts facts;
  facts.requested = requested;
  facts.ranks.resize(world);
  for (RankFacts& rank : facts.ranks) rank.host = "node0";
  return facts;
}

std::string reason_words(const std::string& id) {
  return selector_case(id).at("reason_contains").get<std::string>();
}

TEST(SelectorReferenceCases, Halo) {
  PathFacts facts = facts_of(ExchangePath::halo);
  const Decision decision = select(facts);
  EXPECT_EQ(to_string(decision.path), selector_case("sel-halo").at("expect_path").get<std::string>());
  EXPECT_THAT(decision.reason, HasSubstr(reason_words("sel-halo")));
}

TEST(SelectorReferenceCases, HaloInfeasible) {
  PathFacts facts = facts_of(ExchangePath::halo);
  facts.halo_feasible = false;
  const Decision decision = select(facts);
  EXPECT_EQ(to_string(decision.path),
            selector_case("sel-halo-infeasible").at("expect_path").get<std::string>());
  EXPECT_THAT(decision.reason, HasSubstr(reason_words("sel-halo-infeasible")));
}

// Differs from the reference on purpose: "dense" means the reference backend, which runs every path.
TEST(SelectorReferenceCases, DenseRunsOnAnyPath) {
  ASSERT_EQ(selector_case("sel-dense").at("attn_backend"), "dense");
  PathFacts facts = facts_of(ExchangePath::halo);
  facts.backend = BackendKind::reference;
  facts.dropout_p = 0.25;
  const Decision decision = select(facts);
  EXPECT_EQ(decision.path, ExchangePath::halo);
  EXPECT_EQ(decision.backend, BackendKind::reference);
  EXPECT_THAT(decision.downgrades, IsEmpty());
}

// Differs from the reference on purpose: a kernel some rank lacks is a downgrade of the backend, not of the
// path, and every rank learns which rank and why.
TEST(SelectorReferenceCases, PreflightNamesThePeer) {
  ASSERT_EQ(selector_case("sel-preflight").at("expect_path"), "allgather");
  ASSERT_EQ(find_case(reference_cases().at("preflight_reasons"), "pre-peer").at("peer"), "fails");
  for (const ExchangePath path : {ExchangePath::halo, ExchangePath::a2a}) {
    PathFacts facts = facts_of(path, 4);
    facts.backend = BackendKind::hopper;
    facts.ranks[3].backends[0] = {false, "arch", "sm_80 has no wgmma"};
    const Decision decision = select(facts);
    EXPECT_EQ(decision.path, path);
    EXPECT_EQ(decision.backend, BackendKind::portable);
    ASSERT_EQ(decision.downgrades.size(), 1u);
    EXPECT_EQ(decision.downgrades[0].code, "backend_unavailable");
    EXPECT_EQ(decision.downgrades[0].rank, 3);
    EXPECT_THAT(decision.downgrades[0].text,
                HasSubstr("rank 3 on node0 cannot run hopper: arch: sm_80 has no wgmma"));
  }
}

// Group {0, 8} on nodes of 8 GPUs: two ranks, which a count would judge to be one node.
TEST(SelectorReferenceCases, StridedGroupSpansNodes) {
  const json& gap = find_case(reference_cases().at("gaps_by_inspection"), "gap-strided-group").at("input");
  const int per_node = gap.at("gpus_per_node");
  PathFacts facts = facts_of(ExchangePath::halo, 0);
  for (const int global_rank : gap.at("cp_group")) {
    facts.ranks.push_back({});
    facts.ranks.back().host = "node" + std::to_string(global_rank / per_node);
  }
  EXPECT_EQ(count_nodes(facts), 2);
  EXPECT_EQ(select(facts).downgrades.at(0).code, "cross_node");
}

// The reference's order: mode, backend, (dropout and metadata: no downgrades here), nodes, preflight, plan.
TEST(SelectorReferenceCases, Order) {
  ASSERT_EQ(reference_cases().at("selector_order").size(), 7u);
  PathFacts facts = facts_of(ExchangePath::allgather, 4);
  facts.dropout_p = 0.5;
  facts.ranks[1].host = "node1";
  facts.halo_feasible = false;
  facts.backend = BackendKind::hopper;
  facts.ranks[2].backends[0] = {false, "dtype", "f32"};
  const auto codes = [&] {
    std::vector<std::string> out;
    for (const Downgrade& downgrade : select(facts).downgrades) out.push_back(downgrade.code);
    return out;
  };
  using Codes = std::vector<std::string>;
  EXPECT_EQ(codes(), (Codes{"backend_unavailable"}));  // allgather: nothing about nodes or the plan
  facts.requested = ExchangePath::halo;
  EXPECT_EQ(codes(), (Codes{"backend_unavailable", "cross_node"}));  // nodes before the plan
  facts.needed_only_across_nodes = true;
  EXPECT_EQ(codes(), (Codes{"backend_unavailable", "halo_infeasible"}));
  facts.backend = BackendKind::portable;
  EXPECT_EQ(codes(), (Codes{"halo_infeasible"}));
  facts.requested = ExchangePath::a2a;
  EXPECT_EQ(codes(), Codes{});
}

}  // namespace
}  // namespace bdcp::plan
