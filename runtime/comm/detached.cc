#include "comm/detached.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

namespace bdcp::comm {
namespace {

constexpr std::chrono::seconds kPatienceAtExit{5};

struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  pid_t process = getpid();
};

/// Never destroyed: threads may be left when the process ends.
Running& running() {
  static Running* const all = [] {
    std::atexit([] {
      Running& left = running();
      if (left.process != getpid()) return;  // a forked child has none of them
      std::unique_lock lock(left.mutex);
      left.changed.wait_for(lock, kPatienceAtExit, [&] { return left.count == 0; });
    });
    return new Running;
  }();
  return *all;
}

}  // namespace

void run_detached(std::function<void()> body) {
  Running& all = running();
  {
    std::lock_guard lock(all.mutex);
    ++all.count;
  }
  const auto ended = [&all] {
    std::lock_guard lock(all.mutex);
    --all.count;
    all.changed.notify_all();
  };
  // The thread inherits a full mask: signals of the host process belong to its own threads.
  sigset_t all_signals, before;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_SETMASK, &all_signals, &before);
  try {
    std::thread([body = std::move(body), ended]() mutable {
      body();
      body = nullptr;  // what it holds goes first
      ended();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ended();
    throw;
  }
}

}  // namespace bdcp::comm
