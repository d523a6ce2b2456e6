// Coordinator: what rank 0 keeps for the group: who has come to which meeting. Pure: no socket, no clock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/meeting.h"

namespace bdcp::comm {

class Coordinator {
 public:
  Coordinator(std::string group, int size);

  /// Either every rank has come, or the group has an error that reads the same on all ranks.
  struct Verdict {
    std::vector<std::string> payloads;  ///< by rank
    std::optional<Error> error;
  };
  /// Nothing while others are missing. Ranks come to meetings one by one and in order; another number is an
  /// error.
  std::optional<Verdict> arrive(Channel channel, int rank, std::uint64_t number, Call call,
                                std::string payload);
  /// A rank's deadline has passed: names who is missing; nothing if the meeting came about in the meantime.
  std::optional<Error> expire(Channel channel, std::uint64_t number, double seconds) const;

 private:
  struct Lane {
    std::uint64_t completed = 0;
    int pending = 0;
    std::vector<std::uint64_t> arrived;
    std::vector<Call> calls;
    std::vector<std::string> payloads;
  };
  std::string whereabouts(const std::vector<int>& ranks) const;

  const std::string group_;
  const int size_;
  std::array<Lane, kChannels> lanes_;
};

}  // namespace bdcp::comm
