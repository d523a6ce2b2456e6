#include "comm/reactor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;
/// A round of handlers that is away longer than this was not busy, it was stopped.
constexpr auto kStall = std::chrono::milliseconds(500);

}  // namespace

Signal::Signal() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_) throw Error(ErrorCode::io_error, std::strerror(errno)).with_call("eventfd");
}
void Signal::set() noexcept {
  const std::uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof one);
}
void Signal::clear() noexcept {
  std::uint64_t count = 0;
  (void)!read(fd_.get(), &count, sizeof count);
}

Reactor::Reactor(std::shared_ptr<const Log> log) : log_(std::move(log)), last_round_(Clock::now()) {
  // The thread inherits a full mask: signals of the host process belong to its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::io_error, fmt::format("no thread for the control channel: {}", error.what()))
        .with_call("pthread_create");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Reactor::~Reactor() {
  if (guard_.forked()) {
    (void)
        thread_.release();  // there is no such thread here, and its handle can be neither joined nor destroyed
    return;
  }
  stop();
}

void Reactor::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.set();
  if (thread_ && thread_->joinable()) thread_->join();
}

void Reactor::post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.set();
}

bool Reactor::run_tasks() {
  std::vector<std::function<void()>> tasks;
  bool stopping = false;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
    stopping = stopping_;
  }
  if (!tasks.empty()) last_event_ = Clock::now();
  for (const auto& task : tasks) {
    try {
      task();
    } catch (const std::exception& error) {
      log_->error(fmt::format("control channel: {}", error.what()));
    }
  }
  return !stopping;
}

void Reactor::run() {
  while (run_tasks()) {
    try {
      poll_once();
    } catch (const std::exception& error) {
      log_->error(fmt::format("control channel: {}", error.what()));
    }
  }
  watches_.clear();  // here, where they were used
}

template <class Call>
void Reactor::guarded(Watch& watch, Call call) {
  if (watch.finished) return;
  try {
    call();
  } catch (const std::exception& error) {
    watch.finished = true;
    watch.on_exception(error.what());
  }
}

void Reactor::poll_once() {
  std::vector<pollfd> polled{{wake_.fd(), POLLIN, 0}};
  Deadline next = Deadline::max();
  const std::vector<std::shared_ptr<Watch>> watches = watches_;  // handlers add others
  for (const auto& watch : watches) {
    polled.push_back({watch->fd(), static_cast<short>(POLLIN | (watch->wants_write() ? POLLOUT : 0)), 0});
    next = std::min(next, watch->due());
  }
  int timeout = -1;
  const Deadline before = Clock::now();
  if (next != Deadline::max()) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(next - before).count();
    timeout = static_cast<int>(std::clamp<long long>(ms, 0, 60000));
  }
  // After something has come, from a caller or a peer, the answer often follows at once.
  if (awake_.stay(last_event_)) timeout = 0;
  const int count = poll(polled.data(), polled.size(), timeout);
  if (count < 0 && errno != EINTR) throw Error(ErrorCode::io_error, std::strerror(errno)).with_call("poll");
  if (count > 0 && polled[0].revents) wake_.clear();
  const Deadline now = Clock::now();
  if (count > 0) last_event_ = now;
  // Time between two polls, or in this one beyond its timeout.
  auto away = before - last_round_;
  if (timeout >= 0) away = std::max(away, now - before - std::chrono::milliseconds(timeout));
  last_round_ = now;
  if (away > kStall)
    for (const auto& watch : watches) guarded(*watch, [&] { watch->on_stall(away); });
  // What has come is read before any clock is looked at.
  for (std::size_t i = 0; i < watches.size() && count > 0; ++i) {
    const short events = polled[i + 1].revents;
    if (events == 0) continue;
    guarded(*watches[i],
            [&] { watches[i]->on_ready(events & (POLLIN | POLLHUP | POLLERR), events & POLLOUT); });
  }
  for (const auto& watch : watches)
    if (watch->due() <= now) guarded(*watch, [&] { watch->on_due(); });
  std::erase_if(watches_, [](const auto& watch) { return watch->finished; });
}

}  // namespace bdcp::comm
