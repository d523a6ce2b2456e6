// Communicators over sockets: their ways in, deep trees, and a member that vanishes without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "comm/handshake.h"
#include "comm/rank_threads.h"
#include "comm/socket_ranks.h"
#include "support/broadcast_ranks.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::deadline_in;
using comm::Fd;
using comm::Purpose;
using test::all_well;
using test::Blackboard;
using test::describe;
using test::Outcomes;
using test::run_ranks;
using test::SocketOptions;
using testing::HasSubstr;

ProcessOptions quiet(const std::string& interface = {}) {
  ProcessOptions options;
  options.host_interface = interface;
  options.timeout_s = 60;
  options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
  options.ignore_env = true;
  return options;
}

void expect_rounds(const std::vector<Communicator>& ranks, int rounds) {
  const Outcomes outcomes = run_ranks(ranks, [&](Communicator& handle) {
    for (int round = 0; round < rounds; ++round) {
      const std::string own = std::to_string(handle.rank()) + "/" + std::to_string(round);
      const auto frames = handle.group()->all_gather_frames(own, deadline_in(60));
      for (int rank = 0; rank < handle.size(); ++rank)
        ASSERT_EQ(frames[static_cast<std::size_t>(rank)], std::to_string(rank) + "/" + std::to_string(round));
    }
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST(FromBroadcast, MembersMeetOverAnyInterface) {
  for (const char* interface : {"", "lo", "127.0.0.1"}) {
    Blackboard board;
    std::vector<Communicator> ranks(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        ProcessOptions options = quiet(interface);
        options.host = rank < 2 ? "a" : "b";
        ranks[static_cast<std::size_t>(rank)] = Communicator::from_broadcast(rank, 3, board.of(rank), options);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ranks[2].rank(), 2);
    EXPECT_EQ(ranks[0].hosts(), (std::vector<std::string>{"a", "a", "b"}));
    expect_rounds(ranks, 10);
  }
}

TEST(FromBroadcast, WhatIsWrongIsNamed) {
  const Broadcast nothing = [](const std::string&) { return std::string("garbage"); };
  const auto refused = [](const std::vector<std::string>& words, const std::function<void()>& call) {
    test::expect_error(ErrorCode::invalid_argument, words, call);
  };
  refused({"rank is 3 of 2"}, [&] { Communicator::from_broadcast(3, 2, nothing, quiet()); });
  refused({"broadcast returned 7 bytes on rank 1"},
          [&] { Communicator::from_broadcast(1, 2, nothing, quiet()); });
  refused({"host interface \"no-such-card\"", "lo (127.0.0.1)"},
          [&] { Communicator::from_broadcast(1, 2, nothing, quiet("no-such-card")); });
  ProcessOptions slow = quiet();
  slow.heartbeat_s = 0;
  refused({"heartbeat_s is 0"}, [&] { Communicator::from_broadcast(1, 2, nothing, slow); });
  EXPECT_EQ(Communicator::from_broadcast(0, 1, nothing).size(), 1);
}

TEST(SocketRanks, AgreeInDeepTreesAndOverIpv6) {
  expect_rounds(test::socket_ranks(20, {.arity = 2}), 20);
  expect_rounds(test::socket_ranks(20, {}), 20);
  try {
    (void)comm::listen_on("::1", 0);
  } catch (const Error&) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  expect_rounds(test::socket_ranks(3, {.ip = "::1"}), 5);
}

TEST(SocketRanks, AnOversizedFrameIsRefusedAtItsSource) {
  const auto ranks = test::socket_ranks(2);
  test::expect_error(ErrorCode::unsupported, {"rank 0 brings 2000000 bytes"},
                     [&] { ranks[0].group()->all_gather_frames(std::string(2000000, 'x'), deadline_in(60)); });
  expect_rounds(ranks, 2);
}

/// A rank that goes through the handshakes of its place in the tree and does no more.
struct Puppet {
  std::vector<Fd> links;
  Puppet(const test::SocketWorld& world, std::size_t rank, int parent, int children) {
    const comm::Membership& self = world.members[rank];
    std::string why;
    links.push_back(
        comm::connect_to(self.endpoints[static_cast<std::size_t>(parent)], deadline_in(30), -1, why));
    comm::ClientHandshake up(self.secret,
                             {Purpose::control, self.session, self.name, 0, static_cast<std::uint32_t>(rank)});
    EXPECT_TRUE(comm::run_handshake(links[0].get(), up, deadline_in(30), -1, why)) << why;
    for (int child = 0; child < children; ++child) {
      const int listener = world.listeners[rank].get();
      (void)comm::wait_until_ready(listener, POLLIN, deadline_in(30), -1);
      links.push_back(comm::accept_from(listener));
      comm::ServerHandshake down(self.secret, [](const comm::Hello&) { return std::string(); });
      std::string out;
      while (down.state() == comm::Handshake::State::running || !out.empty()) {
        const short events = out.empty() ? POLLIN : POLLOUT;
        if (comm::wait_until_ready(links.back().get(), events, deadline_in(30), -1) != comm::Ready::yes) return;
        char buffer[4096];
        if (!out.empty()) {
          out.erase(0, comm::write_some(links.back().get(), out.data(), out.size()).bytes);
        } else {
          out += down.feed({buffer, comm::read_some(links.back().get(), buffer, sizeof buffer).bytes});
        }
      }
    }
  }
};

TEST(SocketRanks, TheDeathOfAnInnerRankReachesEveryComponent) {
  // 0 -> 1, 2; 1 -> 3, 4: rank 1 dies during the creation.
  test::SocketWorld world(5, {});
  const auto log = std::make_shared<const Log>(Log::Level::off);
  std::vector<std::optional<Error>> errors(5);
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0u, 2u, 3u, 4u})
    threads.emplace_back([&, rank] {
      // Rank 2 comes when rank 0 has long known of it.
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      comm::ControlChannel channel(std::make_unique<comm::Reactor>(log), std::move(world.listeners[rank]),
                                   world.members[rank], {2, 2, log});
      try {
        channel.assemble(deadline_in(60));
      } catch (const Error& error) {
        errors[rank] = error;
      }
    });
  { const Puppet puppet(world, 1, 0, 2); }
  for (std::thread& thread : threads) thread.join();
  for (const std::size_t rank : {0u, 2u, 3u, 4u}) {
    ASSERT_TRUE(errors[rank]);
    EXPECT_EQ(errors[rank]->code(), ErrorCode::peer_failed);
    EXPECT_EQ(errors[rank]->origin_rank(), 1);
    EXPECT_THAT(errors[rank]->message(), HasSubstr("the creation of the communicator"));
  }
}

TEST(SocketRanks, AMemberThatSpeaksNonsenseFailsTheGroupByName) {
  for (const std::string& bytes :
       {std::string("noise"), comm::to_frame("no message"), comm::to_frame(std::string(1, '\x01'))}) {
    test::SocketWorld world(2, {});
    const auto log = std::make_shared<const Log>(Log::Level::off);
    comm::ControlChannel root(std::make_unique<comm::Reactor>(log), std::move(world.listeners[0]),
                              world.members[0], {2, 32, log});
    const Puppet puppet(world, 1, 0, 0);
    (void)comm::write_some(puppet.links[0].get(), bytes.data(), bytes.size());
    test::expect_error(ErrorCode::peer_failed, {"rank 1 failed", "not sound"},
                       [&] { root.assemble(deadline_in(60)); });
  }
}

TEST(SocketRanks, ClosingBesideASilentPeerNeverWaits) {
  // The puppet reads nothing: what does not fit its socket is dropped, and the destructor returns.
  test::SocketWorld world(2, {});
  const auto log = std::make_shared<const Log>(Log::Level::off);
  std::optional<Puppet> puppet;
  std::optional<comm::ControlChannel> root;
  root.emplace(std::make_unique<comm::Reactor>(log), std::move(world.listeners[0]), world.members[0],
               comm::ChannelOptions{0.01, 32, log});
  puppet.emplace(world, 1, 0, 0);
  root->fail(0, Error(ErrorCode::internal, std::string(60000, 'x')));
  const auto begin = std::chrono::steady_clock::now();
  root.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace bdcp
