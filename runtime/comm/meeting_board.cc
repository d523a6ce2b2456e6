#include "comm/meeting_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace bdcp::comm {
namespace {

/// The failure, and where this rank was when it learnt of it. `place`: "in", "before" or "after".
Error seen_at(const Failure& failure, int rank, const std::string& group, const char* place, Call call) {
  Error error = as_seen_by(rank, failure, group);
  if (failure.everywhere) return error;  // names its call itself
  Error told(error.code(),
             fmt::format("{}; seen by rank {} {} the {}", error.message(), rank, place, to_string(call)),
             error.scope());
  return told.with_call(error.call())
      .with_log(error.log())
      .with_origin(error.origin_rank())
      .with_retry(error.retryable());
}

}  // namespace

MeetingBoard::MeetingBoard(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

std::uint64_t MeetingBoard::begin(Channel channel, Call call) {
  std::lock_guard lock(mutex_);
  if (failure_) throw seen_at(*failure_, rank_, group_, "before", call);
  last_ = call;
  return ++lanes_[static_cast<std::size_t>(channel)].begun;
}

MeetingBoard::Outcome MeetingBoard::wait(Channel channel, std::uint64_t number, Call call, Deadline deadline,
                                         std::vector<std::string>& payloads, int& left) {
  Lane& lane = lanes_[static_cast<std::size_t>(channel)];
  // Where all others are there already it is over at once.
  for (const auto start = Awake::Clock::now(); lane.completed < number && !failed_ && awake_.stay(start);) {
  }
  std::unique_lock lock(mutex_);
  // A meeting that came about counts, even if a member failed or left right after it.
  while (lane.completed < number) {
    if (failure_) throw seen_at(*failure_, rank_, group_, "in", call);
    if (!left_.empty()) {
      left = left_.front();
      return Outcome::somebody_left;
    }
    if (std::chrono::steady_clock::now() >= deadline) return Outcome::late;
    changed_.wait_until(lock, deadline);
  }
  payloads = std::move(lane.payloads);
  return Outcome::done;
}

void MeetingBoard::complete(Channel channel, std::uint64_t number, std::vector<std::string> payloads) {
  std::lock_guard lock(mutex_);
  Lane& lane = lanes_[static_cast<std::size_t>(channel)];
  lane.completed = number;
  lane.payloads = std::move(payloads);
  changed_.notify_all();
}

bool MeetingBoard::record(Failure failure) {
  std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_.emplace(std::move(failure));
  failed_.store(true, std::memory_order_release);
  failure_signal_.set();
  changed_.notify_all();
  return true;
}

bool MeetingBoard::leave(int rank) {
  std::lock_guard lock(mutex_);
  if (std::find(left_.begin(), left_.end(), rank) != left_.end()) return false;
  left_.push_back(rank);
  changed_.notify_all();
  return true;
}

void MeetingBoard::check() const {
  if (!failed()) return;
  std::lock_guard lock(mutex_);
  throw seen_at(*failure_, rank_, group_, "after", last_);
}

std::optional<Failure> MeetingBoard::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> MeetingBoard::left() const {
  std::lock_guard lock(mutex_);
  return left_;
}

}  // namespace bdcp::comm
