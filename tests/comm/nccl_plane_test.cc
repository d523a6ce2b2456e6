// The host side of NCCL: order of calls, who waits for what, and which devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "comm/kv_exchange.h"
#include "comm/nccl_plane_fixture.h"

namespace bdcp {
namespace {

using comm::deadline_in;
using test::all_well;
using test::describe;
using test::NcclPlane;
using test::Outcomes;
using test::run_ranks;
using testing::HasSubstr;

TEST_F(NcclPlane, OlderLibrariesAreRefusedByName) {
  fake<void(int)>("fake_nccl_version")(22500);
  const auto two = ranks();
  EXPECT_THAT(two[0].group()->why_not(devices_[0].get()), HasSubstr("NCCL 2.25.0 at "));
  EXPECT_THAT(two[0].group()->why_not(devices_[0].get()), HasSubstr("is too old; 2.26.0 or newer is needed"));
  EXPECT_EQ(two[0].group()->why_not(nullptr), "");
}

TEST_F(NcclPlane, CallsComeInOrder) {
  busy(5, 0, 0);
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    prepare(comm);
    prepare(comm);  // nothing more
    exchange(comm);
    std::byte* const memory = reinterpret_cast<std::byte*>(0x20000);
    const comm::GatherOp op{{memory, 4, 1, 16, 16, 16}, {memory, 8, 1, 16, 16, 16}};
    comm.group()->all_gather({&op, 1}, lane(comm), {});
    comm.group()->exchange({}, {}, lane(comm), {});  // not NCCL's business
    EXPECT_EQ(comm.group()->transport(device_of(comm).get()), "nccl 2.28.9");
    EXPECT_EQ(comm.group()->transport(nullptr), "sockets");
    EXPECT_TRUE(comm.group()->contiguous_only(device_of(comm).get()));
    EXPECT_EQ(comm.group()->transfer_sms(device_of(comm).get()), 16);
    EXPECT_EQ(comm.group()->transfer_sms(nullptr), 0);
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  EXPECT_EQ(count("ncclGetUniqueId"), 1);
  ASSERT_TRUE(wait_for([&] { return ended() == 2; }));
  EXPECT_EQ(log(0),
            "init\ngroup: gather 256, \ngroup: send 256 to 1, recv 256 from 1, \n"
            "group: send 64 to 1, recv 64 from 1, \ngroup: gather 64, \nfinalize\ndestroy\n");
  EXPECT_EQ(count("ncclGroupStart"), 2 * 4);
  EXPECT_EQ(count("ncclCommAbort"), 0);
}

TEST_F(NcclPlane, ServesTheDeviceOfALaterRuntimeButNoOtherDevice) {
  const Outcomes outcomes = run_ranks(prepared(), [&](Communicator& comm) {
    const auto again = device(comm.rank());  // of a driver object of its own, as another Runtime has it
    ASSERT_NE(again, device_of(comm));
    EXPECT_EQ(comm.group()->why_not(again.get()), "");
    comm.group()->prepare(again, deadline_in(30));
    comm.group()->exchange({}, {}, {lane(comm).stream, again.get()}, {});
    EXPECT_THAT(comm.group()->why_not(device(1 - comm.rank()).get()), HasSubstr("one device per rank"));
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  EXPECT_EQ(count("ncclCommInitRankConfig"), 2);
}

TEST_F(NcclPlane, ExposedTimeIsTakenWithoutAnybodyWaiting) {
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{64}, {.world_size = 2});
  const plan::GlobalPlan global = plan::make_global_plan(layout);
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::bf16, .backward = false};
  const auto two = prepared();
  const int waits = calls("cuStreamSynchronize") + calls("cuEventSynchronize");
  const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) {
    const auto exposed = std::make_shared<comm::ExposedTime>();
    const auto meter = std::make_shared<comm::ExposureMeter>(device_of(comm));
    comm::KvExchange exchange(
        comm.group(), global, plan::make_rank_plan(layout, global, comm.rank()), shape,
        {.path = ExchangePath::halo, .device = device_of(comm), .meter = meter, .exposed = exposed});
    const Stream stream = lane(comm).stream;
    const auto rows = TensorView::packed(reinterpret_cast<void*>(0x100000), DType::bf16, 32, 1, 8);
    const auto call = [&](Direction within) {
      exchange.start_forward(rows, rows, {reinterpret_cast<void*>(0x200000), exchange.landing_bytes()}, stream,
                             within);
      exchange.finish_forward(stream);
    };
    call(Direction::forward);
    call(Direction::forward);
    call(Direction::backward);
    EXPECT_EQ(exposed->waits(Direction::forward), 0u);  // nobody has asked
    meter->read();
    EXPECT_EQ(exposed->waits(Direction::forward), 2u);
    EXPECT_EQ(exposed->us(Direction::forward), 2000);  // the fake's events are 1 ms apart
    EXPECT_EQ(exposed->us(Direction::backward), 1000);
    EXPECT_EQ(exposed->missed(), 0u);
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  EXPECT_EQ(calls("cuStreamSynchronize") + calls("cuEventSynchronize"), waits);
}

TEST_F(NcclPlane, ATransferIsWaitedForOnce) {
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{64}, {.world_size = 2});
  const plan::GlobalPlan global = plan::make_global_plan(layout);
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::bf16, .backward = false};
  const auto two = prepared();
  const Communicator& comm = two[1];  // the last rank sums nothing
  for (const bool timed : {false, true}) {
    comm::KvExchangeOptions options;
    options.path = ExchangePath::halo;
    options.device = device_of(comm);
    if (timed) options.meter = std::make_shared<comm::ExposureMeter>(options.device);
    options.exposed = std::make_shared<comm::ExposedTime>();
    comm::KvExchange exchange(comm.group(), global, plan::make_rank_plan(layout, global, 1), shape, options);
    const Stream stream = lane(comm).stream;
    const auto rows = TensorView::packed(reinterpret_cast<void*>(0x100000), DType::bf16, 32, 1, 8);
    const BufferView landing{reinterpret_cast<void*>(0x200000), exchange.landing_bytes()};
    const BufferView gradients{reinterpret_cast<void*>(0x300000), exchange.gradient_bytes()};
    const int waits = calls("cuStreamWaitEvent");
    const auto waited = [&] { return calls("cuStreamWaitEvent") - waits; };
    exchange.start_forward(rows, rows, landing, stream);
    EXPECT_EQ(waited(), 1);  // the transfer, for its caller
    exchange.finish_forward(stream);
    exchange.finish_forward(stream);
    EXPECT_EQ(waited(), 2);
    exchange.start_forward(rows, rows, landing, stream);
    exchange.start_reduce(exchange.partials(gradients), gradients, stream);
    exchange.finish_forward(stream);
    exchange.finish_reduce(gradients, rows, rows, stream);
    EXPECT_EQ(waited(), 5);  // two transfers, one join
  }
}

TEST_F(NcclPlane, AnyExceptionLeavesTheCallersStreamBehindWhatWasEnqueued) {
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{64}, {.world_size = 2});
  const plan::GlobalPlan global = plan::make_global_plan(layout);
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::bf16, .backward = false};
  const auto two = prepared();
  const Communicator& comm = two[0];
  comm::KvExchangeOptions options;
  options.path = ExchangePath::halo;
  options.device = device_of(comm);
  comm::KvExchange exchange(comm.group(), global, plan::make_rank_plan(layout, global, 0), shape, options);
  fake<void(void (*)())>("fake_nccl_on_group")([] { throw std::bad_alloc(); });
  const int waits = calls("cuStreamWaitEvent");
  const auto rows = TensorView::packed(reinterpret_cast<void*>(0x100000), DType::bf16, 32, 1, 8);
  EXPECT_THROW(exchange.start_forward(rows, rows, {reinterpret_cast<void*>(0x200000), exchange.landing_bytes()},
                                      lane(comm).stream),
               std::bad_alloc);
  hang(false);
  EXPECT_EQ(calls("cuStreamWaitEvent") - waits, 2);  // the transfer for the caller, and the other way round
}

TEST_F(NcclPlane, WhatNcclDoesInTheBackgroundIsWaitedFor) {
  busy(3, 300, 0);
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    prepare(comm);
    exchange(comm);
    comm.check();
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_F(NcclPlane, CommunicatorsOfOneDeviceLaunchOneAfterTheOther) {
  const auto one = prepared(), other = prepared();
  busy(0, 300, 0);
  const auto exchanges = [&](const std::vector<Communicator>& ranks) {
    const Outcomes outcomes = run_ranks(ranks, [&](Communicator& comm) {
      for (int i = 0; i < 20; ++i) exchange(comm);
    });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  };
  std::thread beside([&] { exchanges(other); });
  exchanges(one);
  beside.join();
  EXPECT_EQ(count("during another launch"), 0);
}

TEST_F(NcclPlane, ALaunchThatLastsDoesNotKeepOtherCommunicatorsOut) {
  const auto one = prepared(), other = prepared();
  busy(0, 1 << 30, 0);
  std::optional<Error> ended;
  std::thread stuck([&] {
    try {
      exchange(one[0]);
    } catch (const Error& error) {
      ended = error;
    }
  });
  const int groups = 2 * 2 * 2;  // which connect
  EXPECT_TRUE(wait_for([&] { return count("ncclGroupEnd") > groups; }));
  busy(0, 0, 0);
  exchange(other[0]);
  one[0].abort("a drill");
  stuck.join();
  EXPECT_TRUE(ended);
}

TEST_F(NcclPlane, TwoRanksOnOneDeviceAreRefused) {
  for (const bool uuids : {true, false}) {
    if (!uuids) hide("cuDeviceGetUuid");
    const auto first = device(0);
    const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
      ASSERT_EQ(comm.group()->why_not(first.get()), "");
      comm.group()->prepare(first, deadline_in(30));
    });
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome);
      EXPECT_THAT(outcome->message(), HasSubstr(uuids ? "ranks 0 and 1 both run on GPU a0a1a2a3-"
                                                      : "ranks 0 and 1 both run on device 0 of process "));
    }
  }
  EXPECT_EQ(count("ncclCommInitRankConfig"), 0);
}

TEST_F(NcclPlane, TwoNumbersOfOneGpuAreRefused) {
  call<void()>("fake_one_gpu")();
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    const auto own = device(comm.rank());
    ASSERT_EQ(comm.group()->why_not(own.get()), "");
    comm.group()->prepare(own, deadline_in(30));
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message(),
                testing::AllOf(HasSubstr("ranks 0 and 1 both run on GPU a0a1a2a3-"),
                               HasSubstr("(device 0 of process "), HasSubstr("; device 1 of process ")));
  }
  EXPECT_EQ(count("ncclCommInitRankConfig"), 0);
}

}  // namespace
}  // namespace bdcp
