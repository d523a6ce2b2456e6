// Path and backend selection: a pure function from facts that are equal on every rank to a Decision.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bdcp/decision.h"
#include "bdcp/types.h"
#include "plan/path_costs.h"
#include "plan/plan.h"

namespace bdcp::plan {

/// Whether one rank can run every shape of the step on a backend; code and text say why not.
struct Verdict {
  bool ok = true;
  std::string code, text;
};

/// Backends in order of preference.
inline constexpr std::array<BackendKind, 4> kBackendOrder{BackendKind::hopper, BackendKind::portable,
                                                          BackendKind::reference, BackendKind::host};

/// Indices of kBackendOrder as select() tries them: the named one, those after it, then those before it;
/// automatic: kBackendOrder itself.
std::array<std::size_t, kBackendOrder.size()> backend_order(BackendKind named);

struct RankFacts {
  std::string host;
  std::array<Verdict, kBackendOrder.size()> backends;  ///< in kBackendOrder
  bool kv_strided = false;                             ///< reserved for callers that know their strides ahead
};

struct PathFacts {
  ExchangePath requested = ExchangePath::automatic;
  BackendKind backend = BackendKind::automatic;
  bool needed_only_across_nodes = false;  ///< cross_node = needed_only or BDCP_ALLOW_XNODE=1
  std::optional<int> ranks_per_node;      ///< overrides hosts
  std::vector<RankFacts> ranks;           ///< by rank
  bool halo_feasible = true;
  int halo_infeasible_rank = -1;      ///< first rank whose document reaches left of its neighbour, where known
  std::int64_t needed_tokens = 0;     ///< sum over edges
  std::int64_t allgather_tokens = 0;  ///< (world - 1) * local_len * world
  std::optional<PathCosts> costs;     ///< null: nothing was measured, and tokens decide
  double dropout_p = 0.0;
};

/// Nodes the group spans: distinct hosts, or ceil(world / ranks_per_node). Throws Error(invalid_argument) for
/// ranks_per_node < 1.
int count_nodes(std::span<const std::string> hosts, std::optional<int> ranks_per_node);
int count_nodes(const PathFacts& facts);

/// Never throws for facts that are merely unfortunate: everything becomes a downgrade with code, text and rank.
/// If no backend works on every rank, or one asked for by name does not, the decision falls to the next backend
/// that works everywhere with code "backend_unavailable" (named) or "backend_skipped" (auto); throws
/// Error(backend_unavailable) only if no backend at all is left.
Decision select(const PathFacts& facts);

/// The facts a plan contributes: halo feasibility and the tokens each path moves. Everything else is left as it
/// is in `facts`.
void add_plan_facts(const GlobalPlan& plan, PathFacts& facts);

}  // namespace bdcp::plan
