// Reactor: one thread that waits for sockets and clocks, and never for a peer.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "comm/awake.h"
#include "comm/socket.h"
#include "device/fork_guard.h"

namespace bdcp::comm {

/// A descriptor that another thread can make readable.
class Signal {
 public:
  Signal();  ///< throws Error(io_error)
  void set() noexcept;
  void clear() noexcept;
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

class Reactor {
 public:
  /// Something with a socket, a clock or both. Called on the reactor's thread only; must not block.
  class Watch {
   public:
    virtual ~Watch() = default;
    virtual int fd() const { return -1; }
    virtual bool wants_write() const { return false; }
    virtual void on_ready(bool /*readable*/, bool /*writable*/) {}
    virtual Deadline due() const { return Deadline::max(); }
    virtual void on_due() {}
    /// The reactor was away for this long (a stopped process, a starved host): clocks do not count it.
    virtual void on_stall(Deadline::duration) {}
    /// An exception came out of one of the above; the watch is dropped.
    virtual void on_exception(const std::string& what) = 0;
    /// True: the reactor lets go of it.
    bool finished = false;
  };

  explicit Reactor(std::shared_ptr<const Log> log);
  /// Ends the thread after the handler that runs now. In a forked child nothing is touched.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// Runs `task` on the thread, in order.
  void post(std::function<void()> task);
  /// On the thread only.
  void add(std::shared_ptr<Watch> watch) { watches_.push_back(std::move(watch)); }
  /// Ends the thread: what was posted before still runs.
  void stop();

 private:
  void run();
  bool run_tasks();
  void poll_once();
  template <class Call>
  void guarded(Watch& watch, Call call);

  const std::shared_ptr<const Log> log_;
  const device::ForkGuard guard_;
  Signal wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::shared_ptr<Watch>> watches_;  // the thread's
  Deadline last_round_, last_event_{};
  Awake awake_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace bdcp::comm
