#include "plan/path_costs.h"

#include <algorithm>

namespace bdcp::plan {
namespace {

/// Tokens that the busiest rank sends or receives over the exact edges.
std::int64_t most_tokens(const GlobalPlan& plan) {
  std::vector<std::int64_t> sent(static_cast<std::size_t>(plan.world)), received(sent);
  for (const Edge& edge : plan.edges) {
    sent[static_cast<std::size_t>(edge.src)] += edge.tokens;
    received[static_cast<std::size_t>(edge.dst)] += edge.tokens;
  }
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < sent.size(); ++rank) most = std::max({most, sent[rank], received[rank]});
  return most;
}

}  // namespace

double CostCurve::us(std::int64_t bytes) const {
  if (bytes == 0) return 0;
  const auto above =
      std::find_if(points_.begin(), points_.end(), [&](const auto& point) { return point.first >= bytes; });
  if (above == points_.begin()) return above->second;
  const auto& below = *std::prev(above);
  if (above == points_.end())
    return below.second * (static_cast<double>(bytes) / static_cast<double>(below.first));
  const double share =
      static_cast<double>(bytes - below.first) / static_cast<double>(above->first - below.first);
  return below.second + share * (above->second - below.second);
}

PathCosts path_costs(const GlobalPlan& plan, std::span<const std::int64_t> bytes_per_token,
                     const PathCurves& curves) {
  const std::int64_t needed = most_tokens(plan), peers = std::max(plan.world - 1, 1);
  PathCosts costs;
  for (const std::int64_t bytes : bytes_per_token) {
    costs.allgather_us += curves.allgather.us(plan.local_len * bytes);
    // The a2a curve has every pair busy: the busiest rank's bytes are spread over all its peers.
    costs.needed_us += plan.halo.feasible ? curves.halo.us(needed * bytes)
                                          : curves.a2a.us((needed * bytes + peers - 1) / peers);
  }
  return costs;
}

}  // namespace bdcp::plan
