// Counters from which the CTAs of a launch draw their work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device/device.h"

namespace bdcp::device {

/// One int per stream, zero between launches: a kernel that draws from it leaves it at zero, and launches on a
/// stream run one after the other. Thread safe. Destroy only when no launch draws any more.
class StreamCounters {
 public:
  /// Allocates and clears the memory; waits for that.
  explicit StreamCounters(std::shared_ptr<Device> device);

  /// The counter for one launch on `stream`. A launch that is `captured` gets one of its own, since its graph
  /// may run beside later launches on the stream. Null once there have been kCounters of both: such a launch
  /// must do without.
  int* of(void* stream, bool captured);

  static constexpr std::size_t kCounters = 4096;

 private:
  int* at(std::size_t index) const;

  std::shared_ptr<Device> device_;
  Buffer memory_;
  std::atomic<std::uint64_t> latest_;  // stream id * kCounters + index of the last answer
  std::mutex mutex_;                   // guards what follows
  std::unordered_map<std::uint64_t, std::size_t> index_of_stream_;
  std::size_t used_ = 0;
};

}  // namespace bdcp::device
