#include "comm/group.h"

#include <algorithm>
#include <utility>

namespace bdcp::comm {

Deadline deadline_in(double seconds) {
  constexpr double kLongest = 1e8;  // about three years: far from overflow on every clock
  const double bounded = seconds >= 0 ? std::min(seconds, kLongest) : 0;
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(bounded));
}

StridedRows rows_of(ConstTensorView tensor) {
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  // The same type describes sources and destinations; sources are only read.
  auto* data = static_cast<std::byte*>(const_cast<void*>(tensor.data));
  return {data,
          tensor.tokens,
          tensor.heads,
          tensor.dim * element,
          tensor.token_stride * element,
          tensor.head_stride * element};
}

void* Group::transfer_stream(const std::shared_ptr<device::Device>& device) {
  std::lock_guard lock(streams_mutex_);
  for (const auto& [owner, stream] : streams_)
    if (owner == device.get()) return stream.get();
  streams_.emplace_back(device.get(), device->create_stream(/*high_priority=*/true));
  return streams_.back().second.get();
}

}  // namespace bdcp::comm
