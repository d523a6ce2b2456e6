// A work list of a prepared call in its step's tables: items of the local part, then of the remote part.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "attention/backend.h"
#include "base/check.h"
#include "device/tables.h"

namespace bdcp::attention {

/// With room, as captured launches need it that serve later layouts, a list is sized and placed by the room,
/// and kernels read from the device how many items there are. Such a list has a local part only.
template <class T>
class DeviceList {
 public:
  DeviceList() = default;
  /// Items [0, local_count) are the local part. `tables` outlives the list. `room`: in items; 0: none to spare.
  DeviceList(device::Tables& tables, const std::vector<T>& items, std::size_t local_count, std::size_t room = 0)
      : tables_(&tables), local_(local_count), total_(items.size()) {
    offset_ = tables.add(items.data(), items.size() * sizeof(T), room * sizeof(T));
    if (room == 0) return;
    require(items.size() <= room && local_count == items.size(), ErrorCode::internal,
            "a work list of a graph class exceeds its room");
    count_offset_ = tables.add_count(static_cast<int>(items.size()));
    local_ = total_ = room;
    counted_ = true;
  }
  DeviceList(device::Tables& tables, const std::vector<T>& items)
      : DeviceList(tables, items, items.size(), 0) {}

  /// On the device, once the tables are uploaded; null for an empty list.
  const T* data() const { return total_ > 0 ? static_cast<const T*>(tables_->at(offset_)) : nullptr; }
  const T* part(Part which) const { return which == Part::local ? data() : data() + local_; }
  /// What a launch must cover.
  std::size_t size(Part which) const { return which == Part::local ? local_ : total_ - local_; }
  /// How many of these there are, on the device; null: all.
  const int* count() const { return counted_ ? static_cast<const int*>(tables_->at(count_offset_)) : nullptr; }

 private:
  const device::Tables* tables_ = nullptr;
  std::size_t offset_ = 0, count_offset_ = 0, local_ = 0, total_ = 0;
  bool counted_ = false;
};

/// Throws Error(unsupported) unless a launch can have a CTA for each item and group of heads.
template <class T>
void check_grid(const char* what, const DeviceList<T>& list, int head_groups) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  require(list.size(Part::local) <= kMost / static_cast<std::size_t>(head_groups), ErrorCode::unsupported, [&] {
    return fmt::format("{} {} for {} groups of heads; one launch covers up to {}", list.size(Part::local), what,
                       head_groups, kMost);
  });
}

}  // namespace bdcp::attention
