// The bytes between ranks, without a socket: frames, handshakes, messages, and what damage does to them.
#include "comm/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "comm/control_message.h"
#include "comm/coordinator.h"
#include "comm/handshake.h"
#include "comm/join_message.h"

namespace bdcp::comm {
namespace {

using testing::HasSubstr;
using State = Handshake::State;
using Type = ControlMessage::Type;

TEST(Frames, ComeOutAsTheyWentInHoweverTheyAreCut) {
  const std::string bytes = to_frame("first") + to_frame("") + to_frame(std::string(100000, 'x'));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, bytes.size()}) {
    FrameReader reader(100000);
    std::vector<std::string> bodies;
    std::string body;
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      reader.append(std::string_view(bytes).substr(i, piece));
      while (reader.next(body)) bodies.push_back(body);
    }
    EXPECT_EQ(bodies, (std::vector<std::string>{"first", "", std::string(100000, 'x')}));
    EXPECT_EQ(reader.error(), "");
    EXPECT_TRUE(reader.empty());
  }
}

TEST(Frames, ForeignOversizedAndNewerOnesAreNamed) {
  const auto error = [](std::string bytes) {
    FrameReader reader(10);
    std::string body;
    reader.append(bytes);
    EXPECT_FALSE(reader.next(body));
    return reader.error();
  };
  EXPECT_THAT(error("GET / HTTP/1.1"), HasSubstr("magic"));
  EXPECT_THAT(error("B-"), HasSubstr("magic"));
  EXPECT_THAT(error(to_frame("eleven byte")), HasSubstr("11 bytes; allowed are 10"));
  std::string newer = to_frame("x");
  newer[8] = 9;
  EXPECT_THAT(error(newer), HasSubstr("version 9"));
  EXPECT_EQ(error(to_frame("short").substr(0, 18)), "");
}

const Hello kHello{Purpose::control, "session", "cp", 3, 7};

/// Runs both sides to the end; what the server thinks, and the client.
struct Met {
  ServerHandshake server;
  ClientHandshake client;
  Met(const std::string& server_secret, const std::string& client_secret, const std::string& refusal = "")
      : server(server_secret, [refusal](const Hello&) { return refusal; }), client(client_secret, kHello) {
    std::string bytes = client.opening();
    while (!bytes.empty() && server.state() == State::running) {
      const std::string answer = server.feed(bytes);
      bytes = answer.empty() ? "" : client.feed(answer);
    }
  }
};

TEST(Handshakes, BothSidesProveTheSecretAndKnowEachOther) {
  const Met met("secret", "secret");
  EXPECT_EQ(met.server.state(), State::accepted);
  EXPECT_EQ(met.client.state(), State::accepted);
  EXPECT_EQ(met.server.hello().scope, "session");
  EXPECT_EQ(met.server.hello().group, "cp");
  EXPECT_EQ(met.server.hello().restart, 3u);
  EXPECT_EQ(met.server.hello().rank, 7u);
  EXPECT_EQ(met.server.hello().purpose, Purpose::control);
}

TEST(Handshakes, AWrongSecretConvincesNeitherSide) {
  const Met met("secret", "another");
  EXPECT_NE(met.server.state(), State::accepted);
  EXPECT_EQ(met.client.state(), State::failed);  // the server could not prove it either
  EXPECT_THAT(met.client.why(), HasSubstr("does not hold this job's secret"));
  EXPECT_FALSE(met.client.refused());
}

TEST(Handshakes, ARefusalIsToldToWhoeverHoldsTheSecret) {
  const Met met("secret", "secret", "it is of restart 1");
  EXPECT_EQ(met.server.state(), State::failed);
  EXPECT_TRUE(met.client.refused());
  EXPECT_EQ(met.client.why(), "it is of restart 1");
}

TEST(Handshakes, AReplayFailsOnTheFreshChallenge) {
  const auto admit = [](const Hello&) { return std::string(); };
  ServerHandshake first("secret", admit), second("secret", admit);
  ClientHandshake client("secret", kHello);
  const std::string proof = client.feed(first.feed(client.opening()));
  first.feed(proof);
  ASSERT_EQ(first.state(), State::accepted);
  second.feed(client.opening());
  EXPECT_EQ(second.feed(proof), "");
  EXPECT_EQ(second.state(), State::failed);
  EXPECT_THAT(second.why(), HasSubstr("does not hold this job's secret"));
}

TEST(Handshakes, NoDamagedByteIsAccepted) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    ServerHandshake server("secret", [](const Hello&) { return std::string(); });
    ClientHandshake client("secret", kHello);
    std::string opening = client.opening();
    const bool early = round % 2 == 0;
    if (early) opening[random() % opening.size()] ^= static_cast<char>(1 + random() % 255);
    const std::string challenge = server.feed(opening);
    std::string proof = challenge.empty() ? std::string() : client.feed(challenge);
    if (!early) proof[random() % proof.size()] ^= static_cast<char>(1 + random() % 255);
    if (random() % 4 == 0) proof.resize(random() % (proof.size() + 1));
    server.feed(proof);
    ASSERT_NE(server.state(), State::accepted) << round;
  }
}

ControlMessage failure_message() {
  ControlMessage message;
  message.type = Type::failure;
  Error error(ErrorCode::out_of_memory, "no room for dK", ErrorScope::communicator);
  message.failure = Failure{2, false, error.with_call("cuMemAllocAsync").with_log("log").with_origin(1)};
  return message;
}

ControlMessage complete_message() {
  ControlMessage message;
  message.type = Type::complete;
  message.channel = Channel::data;
  message.call = Call::finish;
  message.number = 1234567890123;
  message.payloads = {"common head A common tail", "common head longer B common tail", "", "common head"};
  return message;
}

TEST(Messages, SurviveTheirEncoding) {
  const auto complete = decode(encode(complete_message()), 4);
  ASSERT_TRUE(complete);
  EXPECT_EQ(complete->payloads, complete_message().payloads);
  EXPECT_EQ(complete->number, 1234567890123u);
  EXPECT_EQ(complete->channel, Channel::data);
  EXPECT_EQ(complete->call, Call::finish);
  const auto failure = decode(encode(failure_message()), 4);
  ASSERT_TRUE(failure);
  const Error& error = failure->failure->error;
  EXPECT_EQ(failure->failure->origin, 2);
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(error.message(), "no room for dK");
  EXPECT_EQ(error.call(), "cuMemAllocAsync");
  EXPECT_EQ(error.origin_rank(), 1);
}

TEST(Messages, NoBytesBreakTheDecoders) {
  std::mt19937 random(2);
  JoinAnswer table;
  table.type = JoinAnswer::Type::table;
  table.session = "s";
  table.hosts = {"a", "b"};
  table.endpoints = {{"127.0.0.1", 1}, {"::1", 2}};
  const JoinRequest request{"cp", {4, 5}, 1, "host", {"127.0.0.1", 9}};
  ASSERT_TRUE(decode_answer(encode(table)));
  ASSERT_TRUE(decode_join(encode(request)));
  const std::string samples[] = {encode(complete_message()), encode(failure_message()), encode(table),
                                 encode(request)};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = samples[random() % 4];
    for (auto left = 1 + random() % 4; left > 0; --left)
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (random() % 5 == 0) bytes += static_cast<char>(random());
    (void)decode(bytes, 4);
    (void)decode_answer(bytes);
    (void)decode_join(bytes);
  }
}

TEST(Messages, RanksBeyondTheGroupAreRefused) {
  ControlMessage message;
  message.type = Type::leave;
  message.rank = 3;
  EXPECT_TRUE(decode(encode(message), 4));
  EXPECT_FALSE(decode(encode(message), 3));
  EXPECT_FALSE(decode(encode(complete_message()), 3));
  EXPECT_FALSE(decode(encode(failure_message()), 2));
}

TEST(Agreement, OfAThousandRanksIsSmallOnTheWire) {
  Coordinator coordinator("cp", 1000);
  const std::string common(4000, 'p');
  ControlMessage complete;
  complete.type = Type::complete;
  for (int rank = 0; rank < 1000; ++rank) {
    auto verdict = coordinator.arrive(Channel::frames, rank, 1, Call::frames,
                                      common + "node" + std::to_string(rank / 8) + common);
    ASSERT_EQ(verdict.has_value(), rank == 999);
    if (verdict) complete.payloads = std::move(verdict->payloads);
  }
  const std::string bytes = encode(complete);
  EXPECT_LT(bytes.size(), 40000u);  // eight megabytes of frames
  EXPECT_EQ(decode(bytes, 1000)->payloads, complete.payloads);
}

TEST(Agreement, NamesWhoIsMissingAndWhoIsElsewhere) {
  Coordinator coordinator("cp", 4);
  coordinator.arrive(Channel::data, 0, 1, Call::exchange_host, "");
  coordinator.arrive(Channel::data, 2, 1, Call::exchange_host, "");
  EXPECT_EQ(coordinator.expire(Channel::data, 1, 1.5)->message(),
            "group 'cp': ranks 1, 3 did not come to the exchange in host memory within 1.5 s");
  coordinator.arrive(Channel::data, 1, 1, Call::gather_host, "");
  const auto verdict = coordinator.arrive(Channel::data, 3, 1, Call::exchange_host, "");
  ASSERT_TRUE(verdict && verdict->error);
  EXPECT_THAT(verdict->error->message(),
              HasSubstr("ranks 0, 2, 3 in exchange in host memory, rank 1 in all-gather"));
  Coordinator other("cp", 2);
  other.arrive(Channel::frames, 0, 1, Call::frames, "a");
  EXPECT_FALSE(other.arrive(Channel::frames, 1, 1, Call::frames, "b")->error);
  EXPECT_FALSE(other.expire(Channel::frames, 1, 9));  // it came about in the meantime
  EXPECT_TRUE(other.arrive(Channel::frames, 1, 3, Call::frames, "c")->error);
}

}  // namespace
}  // namespace bdcp::comm
