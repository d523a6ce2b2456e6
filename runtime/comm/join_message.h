// What a process and the rendezvous tell each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/socket.h"

namespace bdcp::comm {

inline constexpr std::size_t kMaxJoin = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTable = std::size_t{1} << 26;

struct JoinRequest {
  std::string group;
  std::vector<int> ranks;  ///< the group's members as ranks of the job, in group order
  int rank = 0;            ///< in the group
  std::string host;        ///< identity
  Endpoint listener;       ///< as far as this process knows its own address
};
std::string encode(const JoinRequest& request);
std::optional<JoinRequest> decode_join(std::string_view body);

/// The rendezvous' answer: notices of who is missing, then a table or an error.
struct JoinAnswer {
  enum class Type : std::uint8_t { missing = 1, table = 2, error = 3 };
  Type type = Type::missing;
  std::vector<int> missing;
  std::string session;  ///< random, per communicator
  std::vector<std::string> hosts;
  std::vector<Endpoint> endpoints;
  std::string error;
};
std::string encode(const JoinAnswer& answer);
std::optional<JoinAnswer> decode_answer(std::string_view body);

}  // namespace bdcp::comm
