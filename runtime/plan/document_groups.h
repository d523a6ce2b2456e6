// Which documents' tiles run together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/cost_order.h"
#include "plan/plan.h"

namespace bdcp::plan {

/// Tiles of a document read the same rows again and again. If tiles of all documents took turns by their cost
/// alone, these rows would come from memory each time; taken group by group they stay in the device's cache.
struct DocumentGroups {
  int count = 1;                         ///< taken in turn
  std::vector<std::int32_t> of_segment;  ///< empty: all in group 0

  /// Segments past the last one (padding) are in the last group.
  std::int32_t of(std::int32_t segment) const {
    return static_cast<std::size_t>(segment) < of_segment.size() ? of_segment[static_cast<std::size_t>(segment)]
                                                                 : count - 1;
  }
};

/// Groups of as many documents as have up to `rows` rows (of keys or queries, whichever are more) together, or
/// of one longer document. The longest documents come first, so that no long tile starts last. `rows` <= 0: one
/// group of all. O(segments).
DocumentGroups group_documents(const RankPlan& plan, std::int64_t rows);

/// group_documents' `rows` where a row takes `row_bytes` in a cache of `cache_bytes`. A quarter of it: what is
/// read once streams through it as well, and on some devices each half of the SMs keeps a copy of its own.
inline std::int64_t rows_in_cache(std::size_t cache_bytes, std::int64_t row_bytes) {
  return static_cast<std::int64_t>(cache_bytes / 4) / row_bytes;
}

/// Sorts by group, in each by descending cost(item) >= 0; stable. `segment(item)`: one of the item's segments.
template <class T, class Cost, class SegmentOf>
void sort_by_groups(std::vector<T>& items, const DocumentGroups& groups, const Cost& cost,
                    const SegmentOf& segment) {
  std::uint64_t most = 0;
  if (groups.count > 1)
    for (const T& item : items) most = std::max(most, static_cast<std::uint64_t>(cost(item)));
  const int bits = std::bit_width(most);
  // Groups too many to tell apart beside the costs (billions of tokens in tiny groups) would save nothing.
  if (groups.count <= 1 || bits + std::bit_width(static_cast<unsigned>(groups.count)) > 64)
    return sort_costliest_first(items, cost);
  sort_costliest_first(items, [&](const T& item) {
    const auto later = static_cast<std::uint64_t>(groups.count - 1 - groups.of(segment(item)));
    return later << bits | static_cast<std::uint64_t>(cost(item));
  });
}

}  // namespace bdcp::plan
