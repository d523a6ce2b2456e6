// Ranks that talk over sockets as processes do, as threads of one process: for sanitizers, and for speed.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bdcp/communicator.h"
#include "comm/process_group.h"
#include "comm/socket_plane.h"

namespace bdcp::test {

struct SocketOptions {
  std::string name = "cp", ip = "127.0.0.1";
  int arity = 32;
  double heartbeat_s = 2;
  std::vector<std::string> hosts = {};
  comm::Planes planes = {comm::make_socket_plane};
  Log::Sink sink = [](Log::Level, std::string_view) {};
};

/// The members' table, as a rendezvous would have told it, and their listeners.
struct SocketWorld {
  std::vector<comm::Membership> members;
  std::vector<comm::Fd> listeners;

  SocketWorld(int world, const SocketOptions& options) {
    comm::Membership all;
    all.size = world;
    all.name = options.name;
    all.session = std::string(32, 's');
    all.secret = "secret of the tests";
    all.hosts = options.hosts;
    all.hosts.resize(static_cast<std::size_t>(world), "host");
    for (int rank = 0; rank < world; ++rank) {
      listeners.push_back(comm::listen_on(options.ip, 0));
      all.endpoints.push_back(comm::local_endpoint(listeners.back().get()));
    }
    for (int rank = 0; rank < world; ++rank) {
      members.push_back(all);
      members.back().rank = rank;
    }
  }
};

inline std::vector<Communicator> socket_ranks(SocketWorld made, const SocketOptions& options) {
  const auto log = std::make_shared<const Log>(Log::Level::warn, options.sink);
  std::vector<std::shared_ptr<comm::Group>> groups(made.members.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      auto channel = std::make_unique<comm::ControlChannel>(
          std::make_unique<comm::Reactor>(log), std::move(made.listeners[rank]), made.members[rank],
          comm::ChannelOptions{options.heartbeat_s, options.arity, log});
      channel->assemble(comm::deadline_in(60));
      groups[rank] = comm::make_process_group(std::move(channel), options.planes);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<Communicator> ranks;
  for (auto& group : groups) ranks.emplace_back(std::move(group));
  return ranks;
}

inline std::vector<Communicator> socket_ranks(int world, const SocketOptions& options = {}) {
  return socket_ranks(SocketWorld(world, options), options);
}

/// Kinds of groups for tests that hold for all of them.
struct GroupKind {
  const char* name;
  std::vector<Communicator> (*make)(int world);
};
inline const GroupKind kGroupKinds[] = {
    {"Threads", [](int world) { return Communicator::in_process(world); }},
    {"Sockets", [](int world) { return socket_ranks(world); }},
    {"SocketsInATree", [](int world) { return socket_ranks(world, {.arity = 1}); }},
};
inline std::string kind_name(const testing::TestParamInfo<GroupKind>& info) { return info.param.name; }

}  // namespace bdcp::test
