// Every kind of group: frames, deadlines, and every way a rank can fail its peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "comm/rank_threads.h"
#include "comm/socket_ranks.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::deadline_in;
using comm::Group;
using comm::TransferOp;
using test::all_well;
using test::describe;
using test::Outcomes;
using test::run_ranks;
using testing::HasSubstr;

void nap(std::mt19937& random) {
  const auto microseconds = random() % 60;
  if (microseconds < 20) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

std::string frame_of(int rank, int round) {
  return std::to_string(rank) + ":" + std::to_string(round) +
         std::string(static_cast<std::size_t>(round % 7), '.');
}

/// Peers learn of a failure in a moment, not at once.
Error failure_of(const Communicator& rank) {
  for (const auto end = deadline_in(60); std::chrono::steady_clock::now() < end;) {
    try {
      rank.check();
    } catch (const Error& error) {
      return error;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Error(ErrorCode::internal, "no failure");
}

using Frames = testing::TestWithParam<test::GroupKind>;
class Failure : public Frames {};
class Groups : public Frames {};
INSTANTIATE_TEST_SUITE_P(Kinds, Frames, testing::ValuesIn(test::kGroupKinds), test::kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, Failure, testing::ValuesIn(test::kGroupKinds), test::kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, Groups, testing::ValuesIn(test::kGroupKinds), test::kind_name);

TEST_P(Frames, EveryRoundBringsEveryRanksFrameOfThatRound) {
  for (const int world : {1, 2, 3, 8}) {
    const Outcomes outcomes = run_ranks(GetParam().make(world), [&](Communicator& handle) {
      std::mt19937 random(static_cast<unsigned>(handle.rank()));
      for (int round = 0; round < 150; ++round) {
        nap(random);
        const auto frames = handle.group()->all_gather_frames(frame_of(handle.rank(), round), deadline_in(60));
        ASSERT_EQ(frames.size(), static_cast<std::size_t>(world));
        for (int rank = 0; rank < world; ++rank)
          ASSERT_EQ(frames[static_cast<std::size_t>(rank)], frame_of(rank, round));
      }
    });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  }
}

TEST_P(Frames, ADeadlineNamesTheMissingRanksOnAllRanks) {
  const auto ranks = GetParam().make(4);
  const Outcomes outcomes = run_ranks(ranks, [](Communicator& handle) {
    if (handle.rank() % 2 == 0) handle.group()->all_gather_frames("here", deadline_in(0.05));
  });
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank]->code(), ErrorCode::timeout);
    EXPECT_EQ(outcomes[rank]->scope(), ErrorScope::communicator);
    EXPECT_EQ(outcomes[rank]->origin_rank(), 1);
    EXPECT_FALSE(outcomes[rank]->retryable());
    EXPECT_THAT(outcomes[rank]->message(), HasSubstr("ranks 1, 3 did not come"));
  }
  for (const Communicator& late : ranks) {
    EXPECT_EQ(failure_of(late).code(), ErrorCode::timeout);
    test::expect_error(ErrorCode::timeout, {"ranks 1, 3"}, [&] { late.check(); });
    test::expect_error(ErrorCode::timeout, {"ranks 1, 3"},
                       [&] { late.group()->all_gather_frames("late", deadline_in(60)); });
  }
}

TEST_P(Failure, ADestroyedHandleEndsTheWaitsOfItsPeers) {
  for (const int delay_ms : {0, 20}) {  // before the peers wait, and while they do
    const Outcomes outcomes = run_ranks(GetParam().make(3), [&](Communicator& handle) {
      if (handle.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        return;
      }
      if (delay_ms == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      handle.group()->all_gather_frames("x", deadline_in(60));
    });
    EXPECT_FALSE(outcomes[1]);
    for (const std::size_t rank : {0u, 2u}) {
      ASSERT_TRUE(outcomes[rank]);
      EXPECT_EQ(outcomes[rank]->code(), ErrorCode::peer_failed);
      EXPECT_EQ(outcomes[rank]->origin_rank(), 1);
      EXPECT_THAT(outcomes[rank]->message(), HasSubstr("left the group"));
    }
  }
}

TEST_P(Failure, LeavingAfterTheLastCallHarmsNobody) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Outcomes outcomes = run_ranks(GetParam().make(3), [&](Communicator& handle) {
      handle.group()->all_gather_frames("last", deadline_in(60));
      handle.check();
    });
    ASSERT_TRUE(all_well(outcomes)) << describe(outcomes);
  }
}

TEST_P(Failure, IsSeenOnEveryRankWithOriginAndReasonAndTheFirstOneWins) {
  const auto ranks = GetParam().make(3);
  const Outcomes outcomes = run_ranks(ranks, [](Communicator& handle) {
    if (handle.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      Error error(ErrorCode::out_of_memory, "no room for dK");
      handle.group()->fail(error.with_call("cuMemAllocAsync"));
      handle.group()->fail(Error(ErrorCode::internal, "a later one"));
      handle.check();
    } else {
      handle.group()->exchange({}, {}, {}, {});
    }
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank]->code(), rank == 2 ? ErrorCode::out_of_memory : ErrorCode::peer_failed);
    EXPECT_EQ(outcomes[rank]->origin_rank(), 2);
    EXPECT_EQ(outcomes[rank]->scope(), ErrorScope::communicator);
    EXPECT_FALSE(outcomes[rank]->retryable());
    EXPECT_EQ(outcomes[rank]->call(), "cuMemAllocAsync");
    EXPECT_THAT(outcomes[rank]->message(), HasSubstr("rank 2 failed with out_of_memory: no room for dK"));
  }
}

TEST_P(Failure, AtAnyMomentEndsAllRanksWithTheSameOrigin) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const int bad = static_cast<int>(seed % 4);
    const Outcomes outcomes = run_ranks(GetParam().make(4), [&](Communicator& handle) {
      std::mt19937 random(seed * 4 + static_cast<unsigned>(handle.rank()));
      std::vector<std::byte> own(4096), all(4 * 4096);
      for (unsigned round = 0;; ++round) {
        nap(random);
        if (handle.rank() == bad && round == seed % 5) {
          if (seed % 2) handle.abort("told to");
          if (seed % 2) return;
          throw Error(ErrorCode::internal, "leaves without a word");
        }
        if (random() % 2) handle.check();
        handle.group()->all_gather_frames("f", deadline_in(60));
        const comm::GatherOp op{{own.data(), 4, 1, 1024, 1024, 1024}, {all.data(), 16, 1, 1024, 1024, 1024}};
        handle.group()->all_gather({&op, 1}, {}, {});
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == bad) continue;
      ASSERT_TRUE(outcomes[static_cast<std::size_t>(rank)]) << describe(outcomes);
      EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)]->code(), ErrorCode::peer_failed) << describe(outcomes);
      EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)]->origin_rank(), bad);
    }
  }
}

TEST_P(Groups, ASecondThreadOfARankIsRefusedAndHarmsNobody) {
  const auto ranks = GetParam().make(2);
  std::atomic<bool> waiting = false;
  std::thread first([&] {
    waiting = true;
    EXPECT_EQ(ranks[0].group()->all_gather_frames("a", deadline_in(60)).size(), 2u);
  });
  while (!waiting) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  test::expect_error(ErrorCode::invalid_argument, {"two threads of rank 0"},
                     [&] { ranks[0].group()->all_gather_frames("intruder", deadline_in(60)); });
  EXPECT_EQ(ranks[1].group()->all_gather_frames("b", deadline_in(60)), (std::vector<std::string>{"a", "b"}));
  first.join();
  ranks[0].check();
}

TEST_P(Groups, AgreementRunsBesideTransfers) {
  const auto ranks = GetParam().make(3);
  const auto agreements = [](Communicator& handle) {
    for (int round = 0; round < 100; ++round) handle.group()->all_gather_frames("f", deadline_in(60));
  };
  std::thread ahead([&] {
    const Outcomes outcomes = run_ranks(ranks, agreements);
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  });
  const Outcomes outcomes = run_ranks(ranks, [](Communicator& handle) {
    for (int round = 0; round < 100; ++round) handle.group()->exchange({}, {}, {}, {});
  });
  ahead.join();
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_P(Groups, CallsInAForkedChildThrowAndItsHandlesCloseQuietly) {
  auto ranks = GetParam().make(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int refused = 0;
    const std::function<void()> calls[] = {
        [&] { ranks[0].check(); },
        [&] { ranks[0].abort("x"); },
        [&] { ranks[0].group()->all_gather_frames("x", deadline_in(60)); },
        [&] { ranks[1].group()->exchange({}, {}, {}, {}); },
    };
    for (const auto& call : calls) {
      try {
        call();
      } catch (const Error& error) {
        refused += error.code() == ErrorCode::forked;
      }
    }
    ranks.clear();
    _exit(refused);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 4);
  ranks[0].check();  // the parent is untouched
}

}  // namespace
}  // namespace bdcp
