// Awake: stays awake for an answer that is due at once, where cores are free for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace bdcp::comm {

/// The system takes some 30 us to wake a thread that sleeps, longer than many an answer takes. But where other
/// threads want the core, one that offers it while it looks gets it back a time slice later, whereas a sleeper
/// would be woken before them. So an offer that is taken up ends this for a while, for longer each time in a
/// row. Thread safe.
class Awake {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::microseconds(150),
                                            kTaken = std::chrono::microseconds(300),
                                            kLeastRest = std::chrono::milliseconds(5),
                                            kMostRest = std::chrono::seconds(1);

  /// Between two looks: true at once or after a moment, false if it is better to sleep. `since`: when whatever
  /// is answered was sent.
  bool stay(Clock::time_point since) {
    const auto now = Clock::now();
    if (now - since >= kLongest || now.time_since_epoch().count() < rest_until_.load(std::memory_order_relaxed))
      return false;
    std::this_thread::yield();
    const auto back = Clock::now();
    // Two threads may overwrite each other here: either's rest will do.
    const std::chrono::nanoseconds rest(rest_ns_.load(std::memory_order_relaxed));
    if (back - now < kTaken) {
      rest_ns_.store(std::max(rest - rest / 64, kLeastRest).count(), std::memory_order_relaxed);
      return true;
    }
    rest_ns_.store(std::min(rest * 2, kMostRest).count(), std::memory_order_relaxed);
    rest_until_.store((back + rest).time_since_epoch().count(), std::memory_order_relaxed);
    return false;
  }

 private:
  std::atomic<Clock::rep> rest_until_ = 0;
  std::atomic<std::chrono::nanoseconds::rep> rest_ns_ = kLeastRest.count();
};

}  // namespace bdcp::comm
