// One process's way into a group: find the rendezvous, join, learn the members.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/control_channel.h"
#include "comm/rendezvous_hub.h"

namespace bdcp::comm {

struct Joining {
  JobKey job;
  std::string group;
  std::vector<int> ranks;  ///< as in JoinRequest
  int rank = 0;
  std::string host;       ///< identity
  std::string interface;  ///< address to listen on; empty: that of the connection with the rendezvous
  bool loopback_only = false;
};

struct Joined {
  Membership membership;
  Fd listener;
};

/// `where`: candidates in order, asked again in every round. Throws Error(timeout) naming who is missing or why
/// the rendezvous was not found, Error(invalid_argument) for what the rendezvous refuses.
Joined join_group(const Joining& joining, const std::function<std::vector<Endpoint>()>& where,
                  double timeout_s);

}  // namespace bdcp::comm
