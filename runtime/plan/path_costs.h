// What each exchange path of a plan takes, from measured transfers. Pure; the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace bdcp::plan {

/// Microseconds of a transfer by its bytes: linear between the measured points; below the first one its cost,
/// which is latency; beyond the last one its bandwidth.
class CostCurve {
 public:
  /// Ascending, at least one point, costs > 0.
  explicit CostCurve(std::vector<std::pair<std::int64_t, double>> points) : points_(std::move(points)) {}
  /// 0 for 0 bytes.
  double us(std::int64_t bytes) const;

 private:
  std::vector<std::pair<std::int64_t, double>> points_;
};

/// By the bytes that a rank gives to all, to the next one, and to every other one.
struct PathCurves {
  CostCurve allgather, halo, a2a;
};

/// One forward exchange of each shape, slowest rank. What attention itself takes is the same on every path, and
/// so is the way back of dK/dV: neither changes which path is the faster one.
struct PathCosts {
  double allgather_us = 0;
  double needed_us = 0;  ///< exact edges: halo where it reaches, else a2a
};

/// `bytes_per_token`: K and V of a token, one entry per shape.
PathCosts path_costs(const GlobalPlan& plan, std::span<const std::int64_t> bytes_per_token,
                     const PathCurves& curves);

}  // namespace bdcp::plan
