// OneThread: claims one of a group's two channels for the calling thread.
#pragma once

#include <atomic>

#include "comm/group.h"

namespace bdcp::comm {

/// Throws the group's pending failure, or Error(invalid_argument) if another thread holds the claim.
class OneThread {
 public:
  OneThread(std::atomic<bool>& busy, const Group& group);
  ~OneThread() { busy_.store(false, std::memory_order_release); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  std::atomic<bool>& busy_;
};

}  // namespace bdcp::comm
