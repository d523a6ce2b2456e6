#include "plan/exchange_path.h"

#include <fmt/format.h>

#include <set>

#include "base/check.h"

namespace bdcp::plan {
namespace {

constexpr int kAllRanksOk = -1;

/// The first rank that refuses the backend at `index` of kBackendOrder.
int first_refusing(const PathFacts& facts, std::size_t index) {
  for (std::size_t rank = 0; rank < facts.ranks.size(); ++rank) {
    if (!facts.ranks[rank].backends[index].ok) return static_cast<int>(rank);
  }
  return kAllRanksOk;
}

std::string refusal(const PathFacts& facts, std::size_t index, int rank) {
  const RankFacts& who = facts.ranks[rank];
  const Verdict& verdict = who.backends[index];
  return fmt::format("rank {}{} cannot run {}: {}{}{}", rank, who.host.empty() ? "" : " on " + who.host,
                     to_string(kBackendOrder[index]), verdict.code, verdict.code.empty() ? "" : ": ",
                     verdict.text.empty() ? "no reason given" : verdict.text);
}

void choose_backend(const PathFacts& facts, Decision& decision) {
  const bool automatic = facts.backend == BackendKind::automatic;
  std::vector<Downgrade> passed;
  std::string reasons;
  for (const std::size_t index : backend_order(facts.backend)) {
    const int rank = first_refusing(facts, index);
    if (rank == kAllRanksOk) {
      decision.backend = kBackendOrder[index];
      // One step away from a named backend is one downgrade; what auto passed over is recorded piece by piece.
      for (Downgrade& step : passed) {
        step.to = to_string(decision.backend);
        decision.downgrades.push_back(std::move(step));
      }
      return;
    }
    const std::string text = refusal(facts, index, rank);
    reasons += (reasons.empty() ? "" : "; ") + text;
    if (automatic || passed.empty()) {
      passed.push_back({std::string(to_string(kBackendOrder[index])), "",
                        automatic ? "backend_skipped" : "backend_unavailable", text, rank});
    }
  }
  throw Error(ErrorCode::backend_unavailable, "no backend can run this step on every rank: " + reasons,
              ErrorScope::step);
}

std::string nodes_text(const PathFacts& facts, int nodes) {
  if (facts.ranks_per_node) {
    return fmt::format("{} ranks at {} per node span {} nodes", facts.ranks.size(), *facts.ranks_per_node,
                       nodes);
  }
  for (std::size_t rank = 1; rank < facts.ranks.size(); ++rank) {
    if (facts.ranks[rank].host != facts.ranks[0].host) {
      return fmt::format("the group spans {} nodes (rank 0 on {}, rank {} on {})", nodes, facts.ranks[0].host,
                         rank, facts.ranks[rank].host);
    }
  }
  return fmt::format("the group spans {} nodes", nodes);
}

/// Halo where it reaches, else a2a.
ExchangePath needed_only(const PathFacts& facts) {
  return facts.halo_feasible ? ExchangePath::halo : ExchangePath::a2a;
}

constexpr const char* kHaloReason = "neighbor p2p (doc<=2 ranks)";
constexpr const char* kAllToAllReason = "all-to-all-v (doc spans >2 ranks)";

void choose_automatic(const PathFacts& facts, bool cross_node, const std::string& nodes, Decision& decision) {
  if (cross_node) {
    decision.path = ExchangePath::allgather;
    decision.reason = "auto: " + nodes + "; needed-only is not allowed across nodes";
  } else if (facts.costs) {
    const auto [allgather, needed] = *facts.costs;
    decision.path = needed <= allgather ? needed_only(facts) : ExchangePath::allgather;
    decision.reason = fmt::format("auto: as measured, needed-only takes {:.1f} us, allgather {:.1f} us; {}",
                                  needed, allgather, facts.halo_feasible ? kHaloReason : kAllToAllReason);
  } else if (facts.needed_tokens < facts.allgather_tokens) {
    decision.path = needed_only(facts);
    decision.reason = fmt::format("auto: needed-only moves {} tokens, allgather {}; {}", facts.needed_tokens,
                                  facts.allgather_tokens, facts.halo_feasible ? kHaloReason : kAllToAllReason);
  } else {
    decision.path = ExchangePath::allgather;
    decision.reason = fmt::format("auto: needed-only would move {} tokens, allgather {}", facts.needed_tokens,
                                  facts.allgather_tokens);
  }
}

void choose_path(const PathFacts& facts, Decision& decision) {
  if (facts.ranks.size() == 1) {
    decision.path = ExchangePath::local;
    decision.reason = "one rank holds the whole sequence";
    return;
  }
  const int node_count = count_nodes(facts);
  const std::string nodes = nodes_text(facts, node_count);
  const bool cross_node = node_count > 1 && !facts.needed_only_across_nodes;
  const auto downgrade = [&](ExchangePath to, const char* code, std::string text, int rank) {
    decision.downgrades.push_back(
        {std::string(to_string(facts.requested)), std::string(to_string(to)), code, std::move(text), rank});
    decision.path = to;
    decision.reason = decision.downgrades.back().text;
  };
  switch (facts.requested) {
    case ExchangePath::automatic:
    case ExchangePath::local:  // what a world of one reports; as a wish it says nothing
      return choose_automatic(facts, cross_node, nodes, decision);
    case ExchangePath::allgather:
      decision.path = ExchangePath::allgather;
      decision.reason = "requested";
      return;
    case ExchangePath::halo:
      if (cross_node) {
        return downgrade(ExchangePath::allgather, "cross_node",
                         nodes + "; needed-only is not allowed across nodes", -1);
      }
      if (!facts.halo_feasible) {
        return downgrade(ExchangePath::a2a, "halo_infeasible", kAllToAllReason, facts.halo_infeasible_rank);
      }
      decision.path = ExchangePath::halo;
      decision.reason = std::string("requested; ") + kHaloReason;
      return;
    case ExchangePath::a2a:
      if (cross_node) {
        return downgrade(ExchangePath::allgather, "cross_node",
                         nodes + "; needed-only is not allowed across nodes", -1);
      }
      decision.path = ExchangePath::a2a;
      decision.reason = "requested";
      return;
  }
}

}  // namespace

std::array<std::size_t, kBackendOrder.size()> backend_order(BackendKind named) {
  std::size_t first = 0;
  while (first < kBackendOrder.size() && kBackendOrder[first] != named) ++first;
  std::array<std::size_t, kBackendOrder.size()> order{};
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = (first + i) % order.size();
  return order;
}

int count_nodes(std::span<const std::string> hosts, std::optional<int> ranks_per_node) {
  if (ranks_per_node) {
    const int per_node = *ranks_per_node;
    require(per_node >= 1, ErrorCode::invalid_argument,
            [&] { return fmt::format("ranks_per_node is {}; allowed: 1 or more", per_node); });
    return (static_cast<int>(hosts.size()) + per_node - 1) / per_node;
  }
  return static_cast<int>(std::set<std::string_view>(hosts.begin(), hosts.end()).size());
}

int count_nodes(const PathFacts& facts) {
  std::vector<std::string> hosts;
  for (const RankFacts& rank : facts.ranks) hosts.push_back(rank.host);
  return count_nodes(hosts, facts.ranks_per_node);
}

void add_plan_facts(const GlobalPlan& plan, PathFacts& facts) {
  facts.halo_feasible = plan.halo.feasible;
  facts.halo_infeasible_rank = -1;
  for (int rank = 0; rank < plan.world && facts.halo_infeasible_rank < 0; ++rank) {
    if (plan.ranks[rank].back > plan.local_len) facts.halo_infeasible_rank = rank;
  }
  const PathBytes tokens = path_bytes(plan, 1);
  facts.needed_tokens = tokens.a2a;
  facts.allgather_tokens = tokens.allgather;
}

Decision select(const PathFacts& facts) {
  require(!facts.ranks.empty(), ErrorCode::invalid_argument,
          "ranks is empty; allowed: facts of one rank or more");
  Decision decision;
  decision.requested_path = facts.requested;
  decision.requested_backend = facts.backend;
  choose_backend(facts, decision);
  choose_path(facts, decision);
  return decision;
}

}  // namespace bdcp::plan
