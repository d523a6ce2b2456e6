#include "plan/document_groups.h"

#include <algorithm>
#include <numeric>

namespace bdcp::plan {
namespace {

std::int64_t rows_of(const Segment& segment) { return std::max(segment.rows(), segment.keys()); }

}  // namespace

DocumentGroups group_documents(const RankPlan& plan, std::int64_t rows) {
  DocumentGroups groups;
  std::int64_t all = 0;
  for (const Segment& segment : plan.segments) all += rows_of(segment);
  if (rows <= 0 || all <= rows) return groups;
  std::vector<std::int32_t> order(plan.segments.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](std::int32_t i) { return rows_of(plan.segments[static_cast<std::size_t>(i)]); };
  sort_costliest_first(order, size);
  groups.of_segment.resize(order.size());
  std::int64_t open = 0;
  for (const std::int32_t i : order) {
    if (open > 0 && open + size(i) > rows) {
      ++groups.count;
      open = 0;
    }
    open += size(i);
    groups.of_segment[static_cast<std::size_t>(i)] = groups.count - 1;
  }
  return groups;
}

}  // namespace bdcp::plan
