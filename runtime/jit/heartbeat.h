// Heartbeat: says at intervals that something long is still going on, until it is destroyed.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace bdcp::jit {

class Heartbeat {
 public:
  /// Calls `beat` with the seconds since construction, every `interval_s` seconds, on a thread of its own.
  Heartbeat(double interval_s, std::function<void(double seconds)> beat);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace bdcp::jit
