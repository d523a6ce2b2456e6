#include "comm/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace bdcp::comm {

Rendezvous::Rendezvous(std::string name, int size)
    : name_(std::move(name)), size_(size), process_(getpid()), left_(static_cast<std::size_t>(size)) {
  for (Lane& lane : lanes_) {
    lane.arrived.resize(static_cast<std::size_t>(size));
    lane.calls.resize(static_cast<std::size_t>(size));
  }
}

void Rendezvous::require_same_process() const {
  // Before any lock: after a fork another thread may hold it for ever.
  if (getpid() != process_)
    throw Error(ErrorCode::forked,
                fmt::format("group '{}' was created before a fork; the child cannot use it", name_),
                ErrorScope::process);
}

void Rendezvous::throw_if_failed(int rank) const {
  if (failure_) throw as_seen_by(rank, *failure_, name_);
}

void Rendezvous::record(Failure failure) {
  if (!failure_) failure_.emplace(std::move(failure));
  changed_.notify_all();
}

std::vector<int> Rendezvous::missing(const Lane& lane) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank)
    if (lane.arrived[static_cast<std::size_t>(rank)] <= lane.completed) ranks.push_back(rank);
  return ranks;
}

std::optional<int> Rendezvous::departed(const std::vector<int>& ranks) const {
  for (const int rank : ranks)
    if (left_[static_cast<std::size_t>(rank)]) return rank;
  return std::nullopt;
}

void Rendezvous::meet(Channel channel, int rank, Call call, Deadline deadline) {
  require_same_process();
  Lane& lane = lanes_[static_cast<std::size_t>(channel)];
  const auto self = static_cast<std::size_t>(rank);
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  throw_if_failed(rank);
  const std::uint64_t number = ++lane.arrived[self];
  lane.calls[self] = call;
  if (++lane.pending == size_) {
    if (auto error = calls_differ(name_, lane.calls)) {
      record({-1, true, std::move(*error)});
      throw_if_failed(rank);
    }
    lane.pending = 0;
    lane.completed = number;
    lock.unlock();
    changed_.notify_all();
    return;
  }
  // A meeting that came about counts, even if a member failed or left right after it.
  while (lane.completed < number) {
    throw_if_failed(rank);
    const std::vector<int> absent = missing(lane);
    if (const auto gone = departed(absent)) {
      record({*gone, false, left_the_group()});
      throw_if_failed(rank);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      record({-1, true, did_not_come(name_, absent, call, waited.count())});
      throw_if_failed(rank);
    }
    changed_.wait_until(lock, deadline);
  }
}

void Rendezvous::check(int rank) const {
  require_same_process();
  std::lock_guard lock(mutex_);
  throw_if_failed(rank);
}

void Rendezvous::fail(int rank, const Error& error) {
  require_same_process();
  std::lock_guard lock(mutex_);
  record({rank, false, error});
}

void Rendezvous::fail_everywhere(const Error& error) {
  require_same_process();
  std::lock_guard lock(mutex_);
  record({-1, true, error});
}

void Rendezvous::leave(int rank) noexcept {
  if (getpid() != process_) return;
  std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

Rendezvous::Reading::Reading(Rendezvous& rendezvous, int rank) : rendezvous_(rendezvous) {
  std::lock_guard lock(rendezvous_.mutex_);
  rendezvous_.throw_if_failed(rank);
  ++rendezvous_.readers_;
}

Rendezvous::Reading::~Reading() {
  std::lock_guard lock(rendezvous_.mutex_);
  if (--rendezvous_.readers_ == 0) rendezvous_.changed_.notify_all();
}

void Rendezvous::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return readers_ == 0; });
}

}  // namespace bdcp::comm
