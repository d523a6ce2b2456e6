// Words that every kind of group shares: what ranks meet for, and how a failure reads on each of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bdcp/error.h"

namespace bdcp::comm {

/// Independent sequences of meetings.
enum class Channel : std::uint8_t { frames, data };
enum class Call : std::uint8_t {
  frames,
  exchange_host,
  exchange_cuda,
  gather_host,
  gather_cuda,
  finish,
  creation,
  transport
};
inline constexpr int kChannels = 2, kCalls = 8;
const char* to_string(Call call);

/// `everywhere`: a finding about the group that reads the same on every rank; otherwise `origin` failed.
struct Failure {
  int origin = -1;
  bool everywhere = false;
  Error error;
};
/// As `rank` throws it.
Error as_seen_by(int rank, const Failure& failure, const std::string& group);

/// Nothing if all are equal; by rank.
std::optional<Error> calls_differ(const std::string& group, std::span<const Call> calls);
/// `missing` ascending, not empty.
Error did_not_come(const std::string& group, std::span<const int> missing, Call call, double seconds);
Error left_the_group();

}  // namespace bdcp::comm
