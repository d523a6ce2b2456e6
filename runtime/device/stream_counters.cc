#include "device/stream_counters.h"

namespace bdcp::device {
namespace {

constexpr std::size_t kBytes = 32;  // a sector each, so that streams do not share one
constexpr std::uint64_t kNone = ~std::uint64_t{0};

}  // namespace

StreamCounters::StreamCounters(std::shared_ptr<Device> device)
    : device_(std::move(device)), memory_(device_->allocate(kCounters * kBytes)), latest_(kNone) {
  const OwnedStream stream = device_->create_stream(false);
  device_->fill_async(memory_.get(), 0, kCounters * kBytes, stream.get());
  device_->synchronize(stream.get());
}

int* StreamCounters::at(std::size_t index) const {
  return reinterpret_cast<int*>(static_cast<std::byte*>(memory_.get()) + index * kBytes);
}

int* StreamCounters::of(void* stream, bool captured) {
  if (captured) {
    const std::lock_guard lock(mutex_);
    return used_ < kCounters ? at(used_++) : nullptr;
  }
  const std::uint64_t id = device_->stream_id(stream);
  const std::uint64_t latest = latest_.load(std::memory_order_relaxed);
  if (latest != kNone && latest / kCounters == id) return at(latest % kCounters);
  const std::lock_guard lock(mutex_);
  auto found = index_of_stream_.find(id);
  if (found == index_of_stream_.end()) {
    if (used_ == kCounters) return nullptr;
    found = index_of_stream_.emplace(id, used_).first;
    ++used_;
  }
  latest_.store(id * kCounters + found->second, std::memory_order_relaxed);
  return at(found->second);
}

}  // namespace bdcp::device
