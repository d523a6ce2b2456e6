#include "comm/coordinator.h"

#include <fmt/format.h>

#include <utility>

namespace bdcp::comm {

Coordinator::Coordinator(std::string group, int size) : group_(std::move(group)), size_(size) {
  for (Lane& lane : lanes_) {
    lane.arrived.resize(static_cast<std::size_t>(size));
    lane.calls.resize(static_cast<std::size_t>(size));
    lane.payloads.resize(static_cast<std::size_t>(size));
  }
}

std::optional<Coordinator::Verdict> Coordinator::arrive(Channel channel, int rank, std::uint64_t number,
                                                        Call call, std::string payload) {
  Lane& lane = lanes_[static_cast<std::size_t>(channel)];
  const auto self = static_cast<std::size_t>(rank);
  if (number != lane.completed + 1 || lane.arrived[self] == number) {
    Error error(ErrorCode::internal,
                fmt::format("group '{}': rank {} came to meeting {} of the {}; the group is at {}", group_,
                            rank, number, to_string(call), lane.completed + 1),
                ErrorScope::communicator);
    return Verdict{{}, error.with_origin(rank)};
  }
  lane.arrived[self] = number;
  lane.calls[self] = call;
  lane.payloads[self] = std::move(payload);
  if (++lane.pending < size_) return std::nullopt;
  if (auto error = calls_differ(group_, lane.calls)) return Verdict{{}, std::move(error)};
  lane.pending = 0;
  lane.completed = number;
  std::vector<std::string> payloads(static_cast<std::size_t>(size_));
  payloads.swap(lane.payloads);
  return Verdict{std::move(payloads), std::nullopt};
}

std::optional<Error> Coordinator::expire(Channel channel, std::uint64_t number, double seconds) const {
  const Lane& lane = lanes_[static_cast<std::size_t>(channel)];
  if (number <= lane.completed) return std::nullopt;
  std::vector<int> missing;
  Call call = Call::frames;
  for (int rank = 0; rank < size_; ++rank) {
    const auto self = static_cast<std::size_t>(rank);
    if (lane.arrived[self] <= lane.completed) {
      missing.push_back(rank);
    } else {
      call = lane.calls[self];
    }
  }
  if (missing.empty()) return std::nullopt;
  const Error error = did_not_come(group_, missing, call, seconds);
  return Error(error.code(), error.message() + whereabouts(missing), error.scope())
      .with_origin(error.origin_rank())
      .with_retry(false);
}

/// A rank that skipped a call waits elsewhere.
std::string Coordinator::whereabouts(const std::vector<int>& ranks) const {
  std::string text;
  for (const Lane& lane : lanes_)
    for (const int rank : ranks) {
      const auto self = static_cast<std::size_t>(rank);
      if (lane.arrived[self] > lane.completed)
        text += fmt::format("; rank {} waits in the {}", rank, to_string(lane.calls[self]));
    }
  return text;
}

}  // namespace bdcp::comm
