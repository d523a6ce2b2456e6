#include "comm/transfer_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/detached.h"
#include "comm/text.h"

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPoll{10};      // while something is in flight
constexpr std::chrono::milliseconds kStalled{100};  // in flight for this long: the others are told
constexpr std::chrono::seconds kLastTransfers{10};  // what is in flight when the owner goes has this long

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

Fd copy_of(int fd) {
  Fd copy(dup(fd));
  if (!copy) throw Error(ErrorCode::io_error, std::strerror(errno)).with_call("dup");
  return copy;
}

}  // namespace

struct TransferWatch::State {
  struct InFlight {
    Events events;
    std::uint64_t number = 0;
    Call call = Call::exchange_cuda;
    TransferBounds bounds;
    std::optional<Clock::time_point> started, all_started;
  };

  State(ControlChannel& control, std::shared_ptr<device::Device> on, std::shared_ptr<Transport> ended)
      : device(std::move(on)),
        transport(std::move(ended)),
        group(control.membership().name),
        own(control.membership().rank),
        failure(copy_of(control.failure_fd())),
        news(copy_of(control.reports().news().fd())),
        channel(&control) {}

  void poll_events() noexcept;
  void guard() noexcept;
  void look();
  void retire();
  void judge(const std::vector<ReportBoard::Rank>& ranks);
  void tell(const std::vector<ReportBoard::Rank>& ranks);
  void report_failure(const Error& error);
  void finish() noexcept;
  bool wait();

  const std::shared_ptr<device::Device> device;
  const std::shared_ptr<Transport> transport;
  const std::string group;
  const int own;
  const Fd failure, news;  // copies: the channel may go first
  Signal wake, over;

  std::mutex channel_mutex;  // guards the next one; held for moments only
  ControlChannel* channel;   // null once the owner is gone

  std::mutex mutex;  // guards what follows
  std::deque<InFlight> flying;
  std::vector<Events> spare;
  std::uint64_t issued = 0;
  bool asleep = false, released = false;

  // Of the thread that polls.
  std::uint64_t started = 0, told = 0;
};

TransferWatch::TransferWatch(ControlChannel& channel, std::shared_ptr<device::Device> device,
                             std::shared_ptr<Transport> transport)
    : state_(std::make_shared<State>(channel, std::move(device), std::move(transport))) {
  run_detached([state = state_] { state->guard(); });
  try {
    run_detached([state = state_] {
      state->poll_events();
      state->over.set();
    });
  } catch (...) {
    state_->over.set();
    throw;
  }
}

TransferWatch::~TransferWatch() {
  {
    std::lock_guard lock(state_->channel_mutex);
    state_->channel = nullptr;
  }
  std::lock_guard lock(state_->mutex);
  state_->released = true;
  state_->wake.set();
}

TransferWatch::Events TransferWatch::take_events() {
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->spare.empty()) {
      Events events = std::move(state_->spare.back());
      state_->spare.pop_back();
      return events;
    }
  }
  return {state_->device->create_event(), state_->device->create_event()};
}

void TransferWatch::add(Events events, Call call, const TransferBounds& bounds) {
  std::lock_guard lock(state_->mutex);
  ++state_->channel->reports().issued;  // the owner lives, and the channel with it
  state_->flying.push_back({std::move(events), ++state_->issued, call, bounds, {}, {}});
  if (std::exchange(state_->asleep, false)) state_->wake.set();
}

/// False: the group has failed.
bool TransferWatch::State::wait() {
  bool idle = false;
  {
    std::lock_guard lock(mutex);
    idle = asleep = flying.empty() && !released;
  }
  std::array<pollfd, 3> polled{{{failure.get(), POLLIN, 0}, {wake.fd(), POLLIN, 0}, {news.get(), POLLIN, 0}}};
  (void)poll(polled.data(), polled.size(), idle ? -1 : static_cast<int>(kPoll.count()));
  if (polled[1].revents) wake.clear();
  return polled[0].revents == 0;
}

/// Apart from the other thread, which the driver may hold: freeing memory waits for what hangs, and polls wait
/// for that.
void TransferWatch::State::guard() noexcept {
  std::array<pollfd, 2> polled{{{failure.get(), POLLIN, 0}, {over.fd(), POLLIN, 0}}};
  while (poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
  }
  if (polled[0].revents) transport->abort();
}

void TransferWatch::State::poll_events() noexcept {
  device::Device::ignore_captures(device->driver());
  for (;;) {
    const bool well = wait();
    bool gone = false;
    {
      std::lock_guard lock(mutex);
      gone = released;
    }
    if (gone) return finish();
    if (!well) return;
    try {
      look();
    } catch (const Error& error) {
      report_failure(error);
    } catch (const std::exception& error) {
      report_failure(Error(ErrorCode::internal, error.what(), ErrorScope::communicator));
    }
  }
}

void TransferWatch::State::report_failure(const Error& error) {
  std::lock_guard lock(channel_mutex);
  if (channel) channel->fail(own, error);
}

void TransferWatch::State::retire() {
  for (;;) {
    std::unique_lock lock(mutex);
    if (flying.empty()) return;
    InFlight& first = flying.front();
    lock.unlock();  // only this thread removes, and a deque moves nothing when it grows
    if (!device->done(first.events.done.get())) return;
    started = std::max(started, first.number);
    lock.lock();
    spare.push_back(std::move(first.events));
    flying.pop_front();
  }
}

void TransferWatch::State::look() {
  retire();
  if (const auto error = transport->pending_error()) throw *error;
  std::vector<ReportBoard::Rank> ranks;
  {
    std::lock_guard lock(channel_mutex);
    if (!channel) return;
    channel->reports().news().clear();
    ranks = channel->reports().ranks();
  }
  judge(ranks);
  tell(ranks);
}

/// The oldest transfer holds up all others of the stream.
void TransferWatch::State::judge(const std::vector<ReportBoard::Rank>& ranks) {
  InFlight* first = nullptr;
  {
    std::lock_guard lock(mutex);
    if (flying.empty()) return;
    first = &flying.front();
  }
  const auto now = Clock::now();
  if (!first->started && device->done(first->events.started.get())) {
    first->started = now;
    started = first->number;
  }
  if (!first->started || now - *first->started < kStalled) return;
  std::vector<int> missing, gone;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (rank == own || ranks[r].started >= first->number) continue;
    (ranks[r].left ? gone : missing).push_back(rank);
  }
  const auto fail = [&](int origin, bool everywhere, Error error) {
    std::lock_guard lock(channel_mutex);
    if (!channel) return;
    if (everywhere) {
      channel->fail_everywhere(error.with_origin(origin).with_retry(false));
    } else {
      channel->fail(origin, error);
    }
  };
  if (!gone.empty()) return fail(gone.front(), false, left_the_group());
  if (missing.empty()) {
    if (!first->all_started) first->all_started = now;
    if (seconds(now - *first->all_started) < first->bounds.run_s) return;
    return fail(
        -1, true,
        Error(ErrorCode::timeout,
              fmt::format("group '{}': transfer {} ({}) has not ended within {:.3g} s after all ranks had "
                          "started it",
                          group, first->number, to_string(first->call), first->bounds.run_s),
              ErrorScope::communicator));
  }
  if (seconds(now - *first->started) < first->bounds.start_s) return;
  fail(missing.front(), true,
       Error(ErrorCode::timeout,
             fmt::format("group '{}': {} did not start transfer {} ({}) within {:.3g} s", group,
                         ranks_text(missing), first->number, to_string(first->call), first->bounds.start_s),
             ErrorScope::communicator));
}

void TransferWatch::State::tell(const std::vector<ReportBoard::Rank>& ranks) {
  std::uint64_t asked = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (static_cast<int>(r) != own) asked = std::max(asked, ranks[r].started);
  bool waits = false;
  {
    std::lock_guard lock(mutex);
    waits = !flying.empty() && flying.front().started && Clock::now() - *flying.front().started >= kStalled;
  }
  if (started <= told || !(waits || asked > told)) return;
  told = started;
  std::lock_guard lock(channel_mutex);
  if (channel) channel->report(started);
}

void TransferWatch::State::finish() noexcept {
  const auto end = Clock::now() + kLastTransfers;
  try {
    for (;;) {
      retire();
      bool empty = false;
      {
        std::lock_guard lock(mutex);
        empty = flying.empty();
      }
      if (empty) return transport->close();
      pollfd failed{failure.get(), POLLIN, 0};
      if (poll(&failed, 1, static_cast<int>(kPoll.count())) > 0) return;
      if (Clock::now() >= end) break;
    }
  } catch (const std::exception&) {
    // The device is lost: nothing is in flight any more.
  }
  transport->abort();
}

}  // namespace bdcp::comm
