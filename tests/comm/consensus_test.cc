// Frames and comparison of the consensus round, and the ledger of calls.
#include "comm/consensus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "comm/consensus_frame.h"
#include "comm/rank_threads.h"
#include "comm/text.h"

namespace bdcp {
namespace {

using comm::CallLedger;
using comm::ConsensusInput;
using comm::deadline_in;
using comm::decode_frame;
using comm::encode_frame;
using test::Outcomes;
using test::run_ranks;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Runs one round where rank r gives input(r); every rank must end alike. Its message, or "" if all agreed.
std::string round_of(int world, const std::function<ConsensusInput(int)>& input,
                     std::vector<std::string>* facts = nullptr) {
  std::vector<std::vector<std::string>> got(static_cast<std::size_t>(world));
  const Outcomes outcomes = run_ranks(Communicator::in_process(world), [&](Communicator& handle) {
    const int rank = handle.rank();
    got[static_cast<std::size_t>(rank)] = comm::agree(*handle.group(), input(rank), deadline_in(60));
  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.has_value(), outcomes[0].has_value()) << test::describe(outcomes);
    if (!outcome) continue;
    EXPECT_EQ(outcome->code(), ErrorCode::divergence);
    EXPECT_EQ(outcome->scope(), ErrorScope::step);
    EXPECT_EQ(outcome->message(), outcomes[0]->message());
  }
  if (facts) *facts = got[0];
  for (const auto& each : got) EXPECT_EQ(each, got[0]);
  return outcomes[0] ? outcomes[0]->message() : "";
}

ConsensusInput sample() {
  ConsensusInput input;
  input.step = 7;
  input.must_match = {{"layout", "00ff (3 documents)"}, {"shapes", "1"}, {"policy/exchange/path", "auto"}};
  return input;
}

TEST(Agree, HandsEveryRankAllFacts) {
  for (const int world : {1, 2, 5}) {
    std::vector<std::string> facts;
    const auto input = [](int rank) {
      ConsensusInput each = sample();
      each.facts = std::string("f\0", 2) + std::to_string(rank);
      return each;
    };
    EXPECT_EQ(round_of(world, input, &facts), "");
    ASSERT_EQ(facts.size(), static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank)
      EXPECT_EQ(facts[static_cast<std::size_t>(rank)], std::string("f\0", 2) + std::to_string(rank));
  }
}

TEST(Agree, NamesEveryDifferingFieldItsValuesAndTheRanksThatHoldThem) {
  const std::string message = round_of(5, [](int rank) {
    ConsensusInput each = sample();
    if (rank == 3) each.must_match[0].second = "0100 (4 documents)";
    if (rank > 0 && rank < 4) each.must_match[2].second = "halo";
    return each;
  });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("layout: \"00ff (3 documents)\" on ranks 0-2, 4, \"0100 (4 documents)\" on rank 3"),
            HasSubstr("policy/exchange/path: \"auto\" on ranks 0, 4, \"halo\" on ranks 1-3"),
            Not(HasSubstr("shapes"))));
}

TEST(Agree, NamesStepNumbersAndFieldsThatARankLacks) {
  const std::string message = round_of(3, [](int rank) {
    ConsensusInput each = sample();
    if (rank == 1) each.step = 8;
    if (rank == 2) each.must_match.pop_back();
    return each;
  });
  EXPECT_THAT(message, AllOf(HasSubstr("step: \"7\" on ranks 0, 2, \"8\" on rank 1"),
                             HasSubstr("policy/exchange/path: \"auto\" on ranks 0, 1, nothing on rank 2")));
}

TEST(Agree, ShortensLongValuesAroundTheirFirstDifference) {
  const std::string message = round_of(2, [](int rank) {
    ConsensusInput each = sample();
    each.must_match[0].second = std::string(5000, 'a') + (rank ? "LEFT" : "RIGHT") + std::string(5000, 'b');
    return each;
  });
  EXPECT_THAT(message, AllOf(HasSubstr("LEFT"), HasSubstr("RIGHT"), HasSubstr("bytes)")));
  EXPECT_LT(message.size(), 500u);
}

TEST(Agree, ADivergenceLeavesTheGroupUsable) {
  const Outcomes outcomes = run_ranks(Communicator::in_process(2), [](Communicator& handle) {
    ConsensusInput input = sample();
    input.must_match[1].second = std::to_string(handle.rank());
    EXPECT_THROW(comm::agree(*handle.group(), input, deadline_in(60)), Error);
    input.must_match[1].second = "1";
    comm::agree(*handle.group(), input, deadline_in(60));
  });
  EXPECT_TRUE(test::all_well(outcomes)) << test::describe(outcomes);
}

TEST(Agree, NamesTheFirstCallThatDiffers) {
  const std::string message = round_of(3, [](int rank) {
    ConsensusInput each = sample();
    CallLedger ledger;
    for (std::uint64_t call = 0; call < 70; ++call)
      ledger.record(4, rank == 1 && call == 66 ? Direction::backward : Direction::forward, call);
    each.calls = ledger.snapshot();
    return each;
  });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("calls: \"70:"),
            HasSubstr("call 66: ranks 0, 2 did (step 4, fwd, call 66), rank 1 did (step 4, bwd, call 66)")));
}

/// A round in which rank 1 gives `frame` instead of its own.
std::string round_with_foreign(const std::string& frame) {
  const Outcomes outcomes = run_ranks(Communicator::in_process(3), [&](Communicator& handle) {
    if (handle.rank() == 1) {
      handle.group()->all_gather_frames(frame, deadline_in(60));
    } else {
      comm::agree(*handle.group(), sample(), deadline_in(60));
    }
  });
  EXPECT_TRUE(outcomes[0] && outcomes[2] && outcomes[0]->message() == outcomes[2]->message());
  EXPECT_EQ(outcomes[0]->code(), ErrorCode::divergence);
  EXPECT_EQ(outcomes[0]->origin_rank(), 1);
  return outcomes[0]->message();
}

TEST(Agree, MalformedFramesAreNamedErrors) {
  const std::string good = encode_frame(sample());
  std::string newer = good, foreign = good;
  newer[8] = 9;
  foreign[0] = 'X';
  EXPECT_THAT(round_with_foreign(""), HasSubstr("from rank 1: it has 0 bytes"));
  EXPECT_THAT(round_with_foreign(newer), HasSubstr("its frame version is 9"));
  EXPECT_THAT(round_with_foreign(foreign), HasSubstr("magic differs"));
  EXPECT_THAT(round_with_foreign(good.substr(0, good.size() - 3)), HasSubstr("its header says"));
  EXPECT_THAT(round_with_foreign(good + "x"), HasSubstr("its header says"));
}

TEST(Agree, AnOversizedContributionIsRefusedByAllRanks) {
  const std::string message = round_of(2, [](int rank) {
    ConsensusInput each = sample();
    if (rank == 1) each.facts.assign(comm::kFrameMaxBody + 1, 'x');
    return each;
  });
  EXPECT_THAT(message, AllOf(HasSubstr("from rank 1: its body has 10"), HasSubstr("allowed are 1048576")));
}

TEST(Frame, RoundTripsAndKeepsItsFirstSixteenBytes) {
  ConsensusInput input = sample();
  input.facts = std::string(300, '\xff');
  CallLedger ledger;
  ledger.record(1, Direction::backward, 2);
  input.calls = ledger.snapshot();
  const std::string frame = encode_frame(input);
  EXPECT_EQ(frame.substr(0, 12), std::string("BDCPcons\x01\0\0\0", 12));
  const comm::DecodedFrame decoded = decode_frame(frame);
  EXPECT_EQ(decoded.error, "");
  EXPECT_EQ(decoded.input.step, input.step);
  EXPECT_EQ(decoded.input.must_match, input.must_match);
  EXPECT_EQ(decoded.input.facts, input.facts);
  EXPECT_EQ(decoded.input.calls, input.calls);
}

TEST(Frame, TheDecoderSurvivesAnyBytes) {
  ConsensusInput input = sample();
  input.facts = "facts";
  CallLedger ledger;
  for (std::uint64_t call = 0; call < 5; ++call) ledger.record(0, Direction::forward, call);
  input.calls = ledger.snapshot();
  const std::string good = encode_frame(input);
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string frame = good;
    const unsigned edits = 1 + random() % 4;
    for (unsigned e = 0; e < edits; ++e) {
      switch (random() % 5) {
        case 0:
          frame[random() % frame.size()] = static_cast<char>(random());
          break;
        case 1:
          frame.resize(random() % (frame.size() + 1));
          break;
        case 2:
          frame.insert(random() % (frame.size() + 1), 1 + random() % 9, static_cast<char>(random()));
          break;
        case 3:  // a wild length somewhere in the body
          for (std::size_t at = 16 + random() % frame.size(), k = 0; k < 4 && at + k < frame.size(); ++k)
            frame[at + k] = '\xff';
          break;
        default:
          frame.erase(random() % (frame.size() + 1), random() % 9);
      }
      if (frame.empty()) frame = "B";
    }
    if (random() % 2 && frame.size() >= 16) {  // a header that is right, so that the body is looked at
      frame.replace(0, 12, good, 0, 12);
      const std::size_t length = frame.size() - 16;
      for (std::size_t k = 0; k < 4; ++k) frame[12 + k] = static_cast<char>(length >> (8 * k));
    }
    const comm::DecodedFrame decoded = decode_frame(frame);
    ++(decoded.error.empty() ? accepted : refused);
    // Nothing was read twice or skipped.
    if (decoded.error.empty()) {
      EXPECT_EQ(encode_frame(decoded.input), frame);
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 10000);
}

TEST(Ledger, EqualSequencesHaveEqualValuesAndOthersNot) {
  CallLedger a, b, c;
  for (CallLedger* ledger : {&a, &b}) ledger->record(1, Direction::forward, 0);
  c.record(1, Direction::backward, 0);
  EXPECT_EQ(a.snapshot(), b.snapshot());
  EXPECT_NE(a.snapshot().value(), c.snapshot().value());
  EXPECT_EQ(comm::describe_ledger_difference(std::vector{a.snapshot(), b.snapshot()}), "");
}

TEST(Ledger, ARankThatStoppedIsNamed) {
  CallLedger a, b;
  for (CallLedger* ledger : {&a, &b}) ledger->record(1, Direction::forward, 0);
  a.record(1, Direction::forward, 1);
  EXPECT_EQ(comm::describe_ledger_difference(std::vector{a.snapshot(), b.snapshot()}),
            "call 1: rank 0 did (step 1, fwd, call 1), rank 1 did nothing");
}

TEST(Ledger, DifferencesOlderThanItsMemoryAreReportedAsSuch) {
  CallLedger a, b;
  a.record(1, Direction::forward, 0);
  b.record(1, Direction::backward, 0);
  for (std::uint64_t call = 1; call <= CallLedger::kKept; ++call)
    for (CallLedger* ledger : {&a, &b}) ledger->record(1, Direction::forward, call);
  EXPECT_THAT(comm::describe_ledger_difference(std::vector{a.snapshot(), b.snapshot()}),
              HasSubstr("64 calls ago"));
  EXPECT_EQ(a.snapshot().recent.size(), CallLedger::kKept);
  EXPECT_EQ(a.snapshot().recent.front().call, 1u);
}

TEST(Text, RanksBecomeRanges) {
  EXPECT_EQ(comm::ranks_text(std::vector{4}), "rank 4");
  EXPECT_EQ(comm::ranks_text(std::vector{0, 1, 3, 4, 5, 9}), "ranks 0, 1, 3-5, 9");
}

TEST(Text, ShortenedValuesArePrintableAndSayTheirLength) {
  EXPECT_EQ(comm::shortened("a\nb"), "\"a?b\"");
  EXPECT_EQ(comm::shortened(std::string(200, 'a') + "b", 200, 10), "\"...aaaaaaaaab\" (201 bytes)");
}

}  // namespace
}  // namespace bdcp
