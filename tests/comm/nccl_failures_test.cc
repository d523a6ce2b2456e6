// The host side of NCCL: deadlines, aborts and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/nccl_plane_fixture.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using test::all_well;
using test::Clock;
using test::hold_events;
using test::NcclPlane;
using test::Outcomes;
using test::run_ranks;
using testing::HasSubstr;

TEST_F(NcclPlane, AnAsynchronousErrorFailsAllAndAborts) {
  const auto two = prepared();
  hang(true);
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm); })));
  fake<void(int)>("fake_nccl_async")(device::nccl::remote_error);
  for (const Communicator& comm : two) {
    const auto error = failure_of(comm);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->message(), HasSubstr("remote process exited"));
    EXPECT_THAT(error->message(), HasSubstr("the fake's last words"));
    test::expect_error(error->code(), {}, [&] { exchange(comm); });
  }
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
}

TEST_F(NcclPlane, AFailedCallFailsAll) {
  const auto two = prepared();
  const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    fake<void(const char*, int)>("fake_nccl_fail")("ncclSend", device::nccl::invalid_usage);
    exchange(comm);
  });
  ASSERT_TRUE(outcomes[0]);
  EXPECT_EQ(outcomes[0]->code(), ErrorCode::nccl_error);
  EXPECT_EQ(outcomes[0]->call(), "ncclSend");
  EXPECT_EQ(count("ncclGroupStart"), count("ncclGroupEnd"));  // no group stays open
  expect_failure(two[1], ErrorCode::peer_failed, "rank 0 failed with nccl_error");
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
}

TEST_F(NcclPlane, ATransferThatDoesNotEndIsATimeoutOnAllRanks) {
  const auto two = prepared();
  hang(true);
  EXPECT_TRUE(
      all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm, {.start_s = 30, .run_s = 0.3}); })));
  for (const Communicator& comm : two)
    expect_failure(comm, ErrorCode::timeout,
                   "transfer 1 (exchange in device memory) has not ended within 0.3 s");
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
}

TEST_F(NcclPlane, ARankThatDoesNotStartIsNamed) {
  const auto two = prepared();
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm); })));
  hang(true);
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 0) exchange(comm, {.start_s = 0.4, .run_s = 0.1});
  })));
  for (const Communicator& comm : two) {
    expect_failure(comm, ErrorCode::timeout, "rank 1 did not start transfer 2");
    EXPECT_EQ(failure_of(comm)->origin_rank(), 1);
  }
}

TEST_F(NcclPlane, ARankWithNothingToMoveCountsTheTransfer) {
  const auto two = prepared();
  hang(true);
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 0) return exchange(comm, {.start_s = 0.4, .run_s = 30});
    comm.group()->exchange({}, {}, lane(comm), {});
  })));
  EXPECT_FALSE(failure_of(two[0], 0.8));
}

TEST_F(NcclPlane, TheClockRunsOnlyOnceAllStreamsAreThere) {
  const auto two = prepared();
  const comm::TransferBounds bounds{.start_s = 30, .run_s = 0.2};
  hang(true);
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 1) hold_events(1);  // a slow kernel: its stream does not reach the exchange
    exchange(comm, bounds);
  })));
  EXPECT_FALSE(failure_of(two[0], 0.8));
  EXPECT_FALSE(failure_of(two[1], 0));
  call<void()>("fake_finish_events")();  // all at once: it was only slow
  EXPECT_FALSE(failure_of(two[0], 0.4));
}

TEST_F(NcclPlane, ARankThatLeavesIsNamedByThoseThatWait) {
  auto two = prepared();
  hang(true);
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 0) exchange(comm);
  })));
  two[1] = Communicator();
  expect_failure(two[0], ErrorCode::peer_failed, "it left the group");
}

TEST_F(NcclPlane, LeavingAfterTheLastTransferHarmsNobody) {
  auto two = prepared();
  hang(true);
  EXPECT_TRUE(
      all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm, {.start_s = 0.5, .run_s = 30}); })));
  two[1] = Communicator();
  EXPECT_FALSE(failure_of(two[0], 0.5));
}

TEST_F(NcclPlane, AFailureEndsAWaitInsideNccl) {
  const auto two = prepared();
  busy(0, 1 << 30, 0);
  const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 0) return exchange(comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    comm.abort("a drill");
  });
  ASSERT_TRUE(outcomes[0]);
  EXPECT_EQ(outcomes[0]->origin_rank(), 1);
}

TEST_F(NcclPlane, DestroyingNeverBlocksAndAStuckEndIsAborted) {
  auto two = prepared();
  EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm); })));
  busy(0, 0, 1 << 30);
  const auto start = Clock::now();
  two.clear();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 0.5);
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }, 5));
  EXPECT_EQ(count("ncclCommDestroy"), 0);
}

TEST_F(NcclPlane, SurvivorsFormANewOne) {
  for (int round = 0; round < 3; ++round) {
    const auto two = ranks();
    hang(false);
    EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) {
      prepare(comm);
      exchange(comm);
      comm.check();
    })));
    two[0].abort("a drill");
    expect_failure(two[1], ErrorCode::peer_failed, "aborted: a drill");
  }
}

}  // namespace
}  // namespace bdcp
