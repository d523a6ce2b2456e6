// Counters of a Runtime, exported as JSON. Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/exposure.h"

namespace bdcp {

struct Metrics {
  std::atomic<std::uint64_t> steps{0}, failed_steps{0}, forward_calls{0}, backward_calls{0}, failed_calls{0},
      recaptures{0};
  /// Waits for the exchange, of all steps.
  const std::shared_ptr<comm::ExposedTime> exposed = std::make_shared<comm::ExposedTime>();

  void count_not_mine(const std::string& code) {
    std::lock_guard lock(mutex_);
    ++not_mine_[code];
  }
  std::map<std::string, std::uint64_t> not_mine() const {
    std::lock_guard lock(mutex_);
    return not_mine_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> not_mine_;
};

}  // namespace bdcp
