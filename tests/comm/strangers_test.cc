// What connects and does not belong: foreign, malformed, stale, half-open. The group goes on, the log says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <mutex>
#include <random>

#include "comm/acceptor.h"
#include "comm/handshake.h"
#include "comm/rank_threads.h"
#include "comm/rendezvous_client.h"
#include "comm/socket_ranks.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::deadline_in;
using comm::Endpoint;
using comm::Fd;
using comm::Hello;
using comm::Purpose;
using testing::HasSubstr;

/// Lines of all ranks.
struct Lines {
  std::mutex mutex;
  std::string text;
  Log::Sink sink() {
    return [this](Log::Level, std::string_view line) {
      std::lock_guard lock(mutex);
      text.append(line).append("\n");
    };
  }
  bool wait_for(const std::string& words) {
    for (const auto end = deadline_in(30); std::chrono::steady_clock::now() < end;) {
      {
        std::lock_guard lock(mutex);
        if (text.find(words) != std::string::npos) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
};

Fd dial(const Endpoint& endpoint) {
  std::string why;
  Fd fd = comm::connect_to(endpoint, deadline_in(10), -1, why);
  EXPECT_TRUE(fd) << why;
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    (void)comm::wait_until_ready(fd, POLLOUT, deadline_in(10), -1);
    const comm::Moved moved = comm::write_some(fd, bytes.data(), bytes.size());
    if (moved.closed) return;
    bytes.remove_prefix(moved.bytes);
  }
}

/// True if the other side ended the connection.
bool closes(int fd) {
  char buffer[4096];
  for (const auto end = deadline_in(30); comm::wait_until_ready(fd, POLLIN, end, -1) == comm::Ready::yes;)
    if (comm::read_some(fd, buffer, sizeof buffer).closed) return true;
  return false;
}

std::string handshake_result(const Endpoint& endpoint, const std::string& secret, const Hello& hello) {
  const Fd fd = dial(endpoint);
  comm::ClientHandshake handshake(secret, hello);
  std::string why;
  return comm::run_handshake(fd.get(), handshake, deadline_in(10), -1, why) ? "accepted" : why;
}

void expect_sound(const std::vector<Communicator>& ranks) {
  const test::Outcomes outcomes = test::run_ranks(ranks, [](Communicator& handle) {
    for (int round = 0; round < 20; ++round)
      ASSERT_EQ(handle.group()->all_gather_frames("f", deadline_in(60)).size(), 3u);
    std::vector<std::byte> own(1000), all(3000);
    const comm::GatherOp op{{own.data(), 1, 1, 1000, 1000, 1000}, {all.data(), 3, 1, 1000, 1000, 1000}};
    handle.group()->all_gather({&op, 1}, {}, {});
  });
  EXPECT_TRUE(test::all_well(outcomes)) << test::describe(outcomes);
}

/// A group of three, its listeners' addresses and its session.
struct Target {
  Lines lines;
  test::SocketOptions options;
  std::vector<comm::Membership> members;
  std::vector<Communicator> ranks;
  Target() {
    options.sink = lines.sink();
    test::SocketWorld world(3, options);
    members = world.members;
    ranks = test::socket_ranks(std::move(world), options);
  }
  const Endpoint& endpoint(std::size_t rank) const { return members[0].endpoints[rank]; }
};

TEST(Strangers, AreDroppedWithALineAndHarmNobody) {
  Target target;
  const std::string& secret = target.members[0].secret;
  const std::string& session = target.members[0].session;
  std::mt19937 random(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Endpoint& endpoint = target.endpoint(rank);
    for (int round = 0; round < 30; ++round) {
      std::string noise(random() % 3000, '\0');
      for (char& c : noise) c = static_cast<char>(random());
      const Fd fd = dial(endpoint);
      send_all(fd.get(), noise);
      if (!noise.empty() && noise[0] != 'B') {
        EXPECT_TRUE(closes(fd.get()));
      }
    }
  }
  EXPECT_TRUE(target.lines.wait_for("magic differs"));
  Target other;  // fresh lines
  const Endpoint& root = other.endpoint(0);
  {
    std::string oversized = comm::to_frame("");
    oversized.replace(12, 4, "\xff\xff\xff\x7f");
    const Fd fd = dial(root);
    send_all(fd.get(), oversized);
    EXPECT_TRUE(closes(fd.get()));
    EXPECT_TRUE(other.lines.wait_for("allowed are 4096"));
  }
  {
    const Fd fd = dial(root);
    send_all(fd.get(), comm::to_frame("\x01\x02truncated hello"));
    EXPECT_TRUE(closes(fd.get()));
    EXPECT_TRUE(other.lines.wait_for("malformed"));
  }
  {
    dial(root).reset();
    EXPECT_TRUE(other.lines.wait_for("it closed the connection"));
  }
  EXPECT_THAT(handshake_result(root, "guess", {Purpose::control, session, "cp", 0, 1}), HasSubstr("secret"));
  EXPECT_THAT(handshake_result(root, secret, {Purpose::control, "an older session", "cp", 0, 1}),
              HasSubstr("no member of this communicator"));
  EXPECT_TRUE(other.lines.wait_for("earlier incarnation"));
  EXPECT_THAT(handshake_result(root, secret, {Purpose::control, session, "cp", 0, 99}), HasSubstr("rank 99"));
  EXPECT_THAT(handshake_result(root, secret, {Purpose::join, session, "cp", 0, 1}), HasSubstr("no member"));
  // A second process that claims to be rank 1, with the secret: the first one stays.
  EXPECT_EQ(handshake_result(root, secret, {Purpose::control, session, "cp", 0, 1}), "accepted");
  EXPECT_TRUE(other.lines.wait_for("a second control connection of rank 1"));
  expect_sound(target.ranks);
  expect_sound(other.ranks);
}

TEST(Strangers, HalfOpenConnectionsAreBounded) {
  Target target;
  std::vector<Fd> silent;
  for (std::size_t i = 0; i < comm::Acceptor::kMostStrangers + 20; ++i) {
    silent.push_back(dial(target.endpoint(0)));
    send_all(silent.back().get(), "BDCP");
  }
  EXPECT_TRUE(target.lines.wait_for("too many connections wait"));
  EXPECT_TRUE(closes(silent.front().get()));
  expect_sound(target.ranks);
}

/// A rendezvous of its own thread.
struct Hub {
  Lines lines;
  std::shared_ptr<const Log> log = std::make_shared<const Log>(Log::Level::warn, lines.sink());
  comm::Reactor reactor{log};
  comm::JobKey job{"run", 1, "secret"};
  Endpoint endpoint;
  Hub() {
    Fd listener = comm::listen_on("127.0.0.1", 0);
    endpoint = comm::local_endpoint(listener.get());
    comm::RendezvousHub::start(reactor, std::move(listener), job, log);
  }
  comm::Joined join(int rank, const std::vector<int>& ranks, double timeout_s = 60,
                    const std::string& group = "cp") const {
    comm::Joining joining{job, group, ranks, rank, "host", "", true};
    return comm::join_group(
        joining, [this] { return std::vector<Endpoint>{endpoint}; }, timeout_s);
  }
};

TEST(Rendezvous, ServesGroupsSideBySideWhileStrangersComeAndGo) {
  Hub hub;
  std::atomic<bool> stop = false;
  std::thread attacker([&] {
    std::mt19937 random(4);
    while (!stop) {
      std::string noise(random() % 200, '\0');
      for (char& c : noise) c = static_cast<char>(random());
      if (random() % 2) noise = comm::to_frame(noise);
      const Fd fd = dial(hub.endpoint);
      send_all(fd.get(), noise);
    }
  });
  for (int round = 0; round < 10; ++round) {
    std::vector<comm::Joined> joined(6);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 6; ++rank)
      threads.emplace_back([&, rank] {
        // Two groups of one name: ranks 0, 2, 4 and 1, 3, 5 of the job.
        const std::vector<int> ranks = rank % 2 ? std::vector<int>{1, 3, 5} : std::vector<int>{0, 2, 4};
        joined[static_cast<std::size_t>(rank)] = hub.join(rank / 2, ranks);
      });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < 6; ++rank) {
      EXPECT_EQ(joined[rank].membership.session, joined[rank % 2].membership.session);
      EXPECT_EQ(joined[rank].membership.endpoints, joined[rank % 2].membership.endpoints);
    }
    EXPECT_NE(joined[0].membership.session, joined[1].membership.session);
  }
  stop = true;
  attacker.join();
}

TEST(Rendezvous, StaleAndForeignProcessesAreRefusedByName) {
  Hub hub;
  const auto refused = [&](comm::JobKey job, const std::vector<std::string>& words) {
    const comm::Joining joining{std::move(job), "cp", {0, 1}, 1, "host", "", true};
    test::expect_error(ErrorCode::timeout, words, [&] {
      comm::join_group(
          joining, [&] { return std::vector<Endpoint>{hub.endpoint}; }, 0.5);
    });
  };
  refused({"run", 0, "secret"},
          {"rank 1 found no rendezvous", "it is of restart 0, this rendezvous of restart 1"});
  refused({"other", 1, "secret"}, {"it is of run \"other\", this rendezvous of run \"run\""});
  refused({"run", 1, "guess"}, {"does not hold this job's secret"});
  EXPECT_TRUE(hub.lines.wait_for("it is of restart 0"));
}

TEST(Rendezvous, NamesWhoDoesNotCome) {
  Hub hub;
  test::expect_error(ErrorCode::timeout, {"ranks 1, 3 did not come to the creation of the communicator"}, [&] {
    std::thread two([&] { EXPECT_THROW(hub.join(2, {0, 1, 2, 3}, 1), Error); });
    try {
      hub.join(0, {0, 1, 2, 3}, 0.8);
    } catch (const Error&) {
      two.join();
      throw;
    }
  });
}

TEST(Rendezvous, DisagreementsAreNamedOnAllSides) {
  Hub hub;
  std::thread first([&] {
    test::expect_error(ErrorCode::invalid_argument, {"ranks disagree", "ranks 0-2", "ranks 0, 1"}, [&] {
      hub.join(0, {0, 1, 2});
    });
  });
  test::expect_error(ErrorCode::invalid_argument, {"ranks disagree", "ranks 0-2", "ranks 0, 1"}, [&] {
    hub.join(1, {0, 1});
  });
  first.join();
  // Two processes that both take themselves for rank 0: one is told so, the other waits for rank 1.
  std::atomic<int> refused = 0;
  const auto twin = [&] {
    try {
      hub.join(0, {0, 1});
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("rank 0 is here already"));
      ++refused;
    }
  };
  std::thread a(twin), b(twin);
  while (refused == 0) std::this_thread::yield();
  hub.join(1, {0, 1});
  a.join();
  b.join();
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace bdcp
