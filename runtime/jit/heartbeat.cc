#include "jit/heartbeat.h"

#include <chrono>
#include <utility>

namespace bdcp::jit {

Heartbeat::Heartbeat(double interval_s, std::function<void(double)> beat) {
  thread_ = std::thread([this, interval_s, beat = std::move(beat)] {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto interval =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval_s));
    std::unique_lock lock(mutex_);
    for (auto next = start + interval; !wake_.wait_until(lock, next, [this] { return stop_; });
         next += interval) {
      lock.unlock();
      beat(std::chrono::duration<double>(Clock::now() - start).count());
      lock.lock();
    }
  });
}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace bdcp::jit
