// A work list of a prepared call in its step's tables: items of the local part, then of the remote part.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "device/tables.h"

namespace bdcp::attention {

template <class T>
class DeviceList {
 public:
  DeviceList() = default;
  /// Items [0, local_count) are the local part. `tables` outlives the list.
  DeviceList(device::Tables& tables, const std::vector<T>& items, std::size_t local_count)
      : tables_(&tables),
        offset_(tables.add(items.data(), items.size() * sizeof(T))),
        local_(local_count),
        total_(items.size()) {}
  DeviceList(device::Tables& tables, const std::vector<T>& items) : DeviceList(tables, items, items.size()) {}

  /// On the device, once the tables are uploaded; null for an empty list.
  const T* data() const { return total_ > 0 ? static_cast<const T*>(tables_->at(offset_)) : nullptr; }
  const T* part(Part which) const { return which == Part::local ? data() : data() + local_; }
  std::size_t size(Part which) const { return which == Part::local ? local_ : total_ - local_; }

 private:
  const device::Tables* tables_ = nullptr;
  std::size_t offset_ = 0, local_ = 0, total_ = 0;
};

}  // namespace bdcp::attention
