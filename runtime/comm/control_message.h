// What travels on control connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/meeting.h"

namespace bdcp::comm {

struct ControlMessage {
  enum class Type : std::uint8_t {
    arrive = 1,     ///< up: rank has come to a meeting
    expire = 2,     ///< up: rank's deadline for it has passed
    complete = 3,   ///< down: all have come
    failure = 4,    ///< to all
    leave = 5,      ///< to all: rank has destroyed its handle, with `number` transfers issued
    heartbeat = 6,  ///< to the neighbour
    report = 7,     ///< to all: rank has started its transfers up to `number`
  };
  Type type = Type::heartbeat;
  Channel channel = Channel::frames;
  Call call = Call::frames;
  std::uint64_t number = 0;
  int rank = 0;
  std::uint32_t milliseconds = 0;  ///< expire: how long it waited; heartbeat: the sender's interval
  std::string payload;
  std::vector<std::string> payloads;
  std::optional<Failure> failure;
};

inline constexpr std::size_t kMaxPayload = (std::size_t{1} << 20) + 64;
/// The largest message a group of `size` ranks sends.
std::size_t max_message(int size);

std::string encode(const ControlMessage& message);
/// Nothing for bytes that no rank of a group of `size` writes. Never throws for any bytes but out of memory.
std::optional<ControlMessage> decode(std::string_view body, int size);

}  // namespace bdcp::comm
