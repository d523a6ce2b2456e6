#include "plan/path_costs.h"

#include <gtest/gtest.h>

#include <array>

#include "plan/exchange_path.h"

namespace bdcp::plan {
namespace {

constexpr std::int64_t kToken = 10;
CostCurve flat(double us) { return CostCurve({{1, us}, {1000000, us}}); }
/// us = bytes, beyond a byte.
CostCurve line() { return CostCurve({{1, 1.0}, {1000, 1000.0}}); }

GlobalPlan plan_of(const std::vector<std::int64_t>& lengths, int world) {
  return make_global_plan(DocLayout::from_lengths(lengths, {.world_size = world}));
}

TEST(CostCurve, LatencyThenLinesThenBandwidth) {
  const CostCurve curve({{100, 10.0}, {200, 30.0}, {400, 40.0}});
  EXPECT_EQ(curve.us(0), 0);
  EXPECT_EQ(curve.us(1), 10);
  EXPECT_EQ(curve.us(100), 10);
  EXPECT_EQ(curve.us(150), 20);
  EXPECT_EQ(curve.us(200), 30);
  EXPECT_EQ(curve.us(300), 35);
  EXPECT_EQ(curve.us(400), 40);
  EXPECT_EQ(curve.us(4000), 400);
}

TEST(PathCosts, AreThoseOfTheBusiestRank) {
  // Rows of 10 per rank; 4 tokens reach from rank 0 to rank 1, 7 from rank 1 to rank 2.
  const GlobalPlan plan = plan_of({6, 7, 17}, 3);
  ASSERT_TRUE(plan.halo.feasible);
  const std::array<std::int64_t, 1> shape{kToken};
  EXPECT_EQ(path_costs(plan, shape, {line(), line(), flat(1)}).allgather_us, plan.local_len * kToken);
  EXPECT_EQ(path_costs(plan, shape, {flat(1), line(), flat(1)}).needed_us, 7 * kToken);
  const std::array<std::int64_t, 2> two{kToken, 3 * kToken};
  EXPECT_EQ(path_costs(plan, two, {flat(1), line(), flat(1)}).needed_us, 7 * 4 * kToken);
}

TEST(PathCosts, ADocumentOverManyRanksIsAnAllToAll) {
  const GlobalPlan plan = plan_of({40}, 4);
  ASSERT_FALSE(plan.halo.feasible);
  const std::array<std::int64_t, 1> shape{kToken};
  // Rank 3 receives 30 tokens and rank 0 sends as many, to 3 peers.
  EXPECT_EQ(path_costs(plan, shape, {flat(1), flat(1), line()}).needed_us, 30 / 3 * kToken);
}

TEST(PathCosts, NothingToMoveCostsNothing) {
  const std::array<std::int64_t, 1> shape{kToken};
  const PathCosts costs = path_costs(plan_of({10, 10}, 2), shape, {flat(5), flat(6), flat(7)});
  EXPECT_EQ(costs.needed_us, 0);
  EXPECT_EQ(costs.allgather_us, 5);
}

TEST(PathCosts, DecideWhereTokensWouldNot) {
  PathFacts facts;
  facts.ranks.resize(2);
  facts.needed_tokens = 10;
  facts.allgather_tokens = 100;
  EXPECT_EQ(select(facts).path, ExchangePath::halo);
  facts.costs = {.allgather_us = 5, .needed_us = 6};
  EXPECT_EQ(select(facts).path, ExchangePath::allgather);
  EXPECT_EQ(select(facts).reason,
            "auto: as measured, needed-only takes 6.0 us, allgather 5.0 us; neighbor p2p (doc<=2 ranks)");
  facts.costs->needed_us = 5;
  EXPECT_EQ(select(facts).path, ExchangePath::halo);
  facts.halo_feasible = false;
  EXPECT_EQ(select(facts).path, ExchangePath::a2a);
  facts.ranks_per_node = 1;  // what is not allowed is not weighed
  EXPECT_EQ(select(facts).path, ExchangePath::allgather);
  facts.requested = ExchangePath::a2a;
  facts.needed_only_across_nodes = true;
  facts.costs->needed_us = 50;  // and what was asked for neither
  EXPECT_EQ(select(facts).path, ExchangePath::a2a);
}

}  // namespace
}  // namespace bdcp::plan
