// A read-only table on a device that belongs to a prepared call: items of the local part, then of the remote
// part.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "device/device.h"

namespace bdcp::attention {

template <class T>
class DeviceList {
 public:
  DeviceList() = default;
  /// Items [0, local_count) are the local part.
  DeviceList(device::Device& device, const std::vector<T>& items, std::size_t local_count)
      : local_(local_count), total_(items.size()) {
    if (items.empty()) return;
    buffer_ = device.allocate(items.size() * sizeof(T));
    device.upload(buffer_.get(), items.data(), items.size() * sizeof(T));
  }
  DeviceList(device::Device& device, const std::vector<T>& items) : DeviceList(device, items, items.size()) {}

  const T* data() const { return static_cast<const T*>(buffer_.get()); }
  const T* part(Part which) const { return which == Part::local ? data() : data() + local_; }
  std::size_t size(Part which) const { return which == Part::local ? local_ : total_ - local_; }

 private:
  device::Buffer buffer_;
  std::size_t local_ = 0, total_ = 0;
};

}  // namespace bdcp::attention
