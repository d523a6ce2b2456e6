// The host side of NCCL: order of calls, deadlines, aborts and ends, over the tests' libnccl and libcuda.
#include "comm/nccl_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <thread>

#include "comm/kv_exchange.h"
#include "comm/rank_threads.h"
#include "comm/socket_ranks.h"
#include "device/fake_driver.h"
#include "device/nccl_library.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::deadline_in;
using comm::Lane;
using comm::StridedRows;
using comm::TransferOp;
using test::all_well;
using test::describe;
using test::Outcomes;
using test::run_ranks;
using testing::ElementsAre;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

void (*hold_events)(int) = nullptr;

class NcclPlane : public device::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    std::string why;
    nccl_ = device::DynamicLibrary::open({"libnccl.so.2"}, BDCP_FAKE_LIBNCCL, {}, &why);
    ASSERT_TRUE(nccl_) << why;
    ASSERT_NE(nccl_->symbol("fake_nccl_reset"), nullptr) << "a real NCCL is loaded: " << nccl_->path();
    fake<void()>("fake_nccl_reset")();
    hold_events = call<void(int)>("fake_hold_events");
    driver_ = open(&why);
    ASSERT_TRUE(driver_) << why;
    for (int ordinal : {0, 1}) devices_.push_back(driver_->device(ordinal));
  }
  void TearDown() override {
    // Whatever ranks left behind ends before the next test counts calls.
    call<void()>("fake_finish_events")();
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (ended() < count("ncclCommInitRankConfig") && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ended(), count("ncclCommInitRankConfig")) << "an ncclComm_t is left";
    EXPECT_EQ(count("after the end"), 0) << "an ncclComm_t was used after its end";
  }
  template <class F>
  F* fake(const char* name) {
    return reinterpret_cast<F*>(nccl_->symbol(name));
  }
  int count(const char* function) { return fake<int(const char*)>("fake_nccl_calls")(function); }
  int ended() { return count("ncclCommAbort") + count("ncclCommDestroy"); }
  std::string log(int rank) { return fake<const char*(int)>("fake_nccl_log")(rank); }
  void busy(int init, int groups, int finalize) {
    fake<void(int, int, int)>("fake_nccl_busy")(init, groups, finalize);
  }
  void background() { fake<void()>("fake_nccl_background")(); }
  void release() { fake<void()>("fake_nccl_release")(); }
  /// From now on what comes after a group on its stream does not come about.
  void hang(bool on) {
    fake<void(void (*)())>("fake_nccl_on_group")(on ? +[] { hold_events(1); } : nullptr);
  }
  bool wait_for(const std::function<bool()>& condition, double seconds = 3) {
    const auto end = deadline_in(seconds);
    while (!condition() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return condition();
  }

  std::vector<Communicator> ranks(int world = 2) {
    const Env env = Env::from_pairs({{"BDCP_LIBNCCL", BDCP_FAKE_LIBNCCL}});
    return test::socket_ranks(
        world, {.heartbeat_s = 0.2, .planes = {comm::make_socket_plane, [env](comm::ControlChannel& channel) {
                                                 return comm::make_nccl_plane(channel, env);
                                               }}});
  }
  std::shared_ptr<device::Device> device_of(const Communicator& comm) {
    return devices_[static_cast<std::size_t>(comm.rank())];
  }
  void prepare(const Communicator& comm) {
    ASSERT_EQ(comm.group()->why_not(device_of(comm).get()), "");
    comm.group()->prepare(device_of(comm), deadline_in(30));
  }
  std::vector<Communicator> prepared() {
    auto two = ranks();
    const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) { prepare(comm); });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
    return two;
  }
  Lane lane(const Communicator& comm) {
    return {Stream::cuda(reinterpret_cast<void*>(0x700), comm.rank()), device_of(comm).get()};
  }
  /// A few rows to the other rank, and as many from it.
  void exchange(const Communicator& comm, comm::TransferBounds bounds = {}) {
    const StridedRows rows{reinterpret_cast<std::byte*>(0x10000), 4, 1, 16, 16, 16}, none{};
    const int peer = 1 - comm.rank();
    const TransferOp ops[] = {{peer, rows}, {peer, none}};
    comm.group()->exchange(ops, ops, lane(comm), bounds);
  }
  /// What check() throws within `seconds`.
  static std::optional<Error> failure_of(const Communicator& comm, double seconds = 3) {
    for (const auto end = deadline_in(seconds); Clock::now() < end;
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      try {
        comm.check();
      } catch (const Error& error) {
        return error;
      }
    return std::nullopt;
  }
  void expect_failure(const Communicator& comm, ErrorCode code, const std::string& words) {
    const auto error = failure_of(comm);
    ASSERT_TRUE(error) << "rank " << comm.rank() << " has not failed";
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_THAT(error->message(), HasSubstr(words));
  }

  std::shared_ptr<const device::DynamicLibrary> nccl_;
  std::shared_ptr<const device::Driver> driver_;
  std::vector<std::shared_ptr<device::Device>> devices_;
};

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
            "init\ngroup: gather 256, \ngroup: gather 33554432, \ngroup: send 256 to 1, recv 256 from 1, \n"
            "group: send 64 to 1, recv 64 from 1, \ngroup: gather 64, \nfinalize\ndestroy\n");
  EXPECT_EQ(count("ncclGroupStart"), 2 * 5);
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
  background();
  busy(3, 300, 0);
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    prepare(comm);
    exchange(comm);
    comm.check();
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_F(NcclPlane, CommunicatorsOfOneDeviceLaunchOneAfterTheOther) {
  background();
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
  background();
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
  const int groups = 2 * 2 * 3;  // which connect
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
  background();
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

TEST_F(NcclPlane, ACallThatHangsInsideNcclIsEndedAfterAWhile) {
  const auto two = prepared();
  busy(0, 1 << 30, 0);
  const auto start = Clock::now();
  const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) {
    if (comm.rank() == 0) return exchange(comm);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    comm.abort("a drill");
  });
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 2);
  expect_failure(two[0], ErrorCode::peer_failed, "a drill");
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
}

TEST_F(NcclPlane, DestroyingNeverBlocksAndAStuckEndIsAborted) {
  for (const bool in_background : {true, false}) {
    if (in_background) background();
    auto two = prepared();
    EXPECT_TRUE(all_well(run_ranks(two, [&](Communicator& comm) { exchange(comm); })));
    busy(0, 0, 1 << 30);
    const auto start = Clock::now();
    two.clear();
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 0.5);
    if (!in_background) {
      // Whoever is inside must come out first.
      EXPECT_FALSE(wait_for([&] { return count("ncclCommAbort") > 0; }));
      release();
    }
    EXPECT_TRUE(wait_for([&] { return ended() == 2; }, 5));
    EXPECT_EQ(count("ncclCommDestroy"), 0);
    EXPECT_EQ(count("after the end"), 0);
    fake<void()>("fake_nccl_reset")();
  }
}

TEST_F(NcclPlane, AFailureEndsTheWaitForACreationThatHangs) {
  busy(1 << 30, 0, 0);
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    if (comm.rank() == 0) return prepare(comm);
    std::thread killer([&] {
      EXPECT_TRUE(wait_for([&] { return count("ncclCommInitRankConfig") == 2; }));
      comm.abort("a drill");
    });
    try {
      prepare(comm);
    } catch (...) {
      killer.join();
      throw;
    }
    killer.join();
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message(), HasSubstr("a drill"));
  }
  // Both are inside NCCL: nothing may be freed under them.
  EXPECT_EQ(count("ncclCommAbort"), 0);
  release();
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
}

TEST_F(NcclPlane, ADeadlineEndsTheWaitForConnectionsThatHang) {
  busy(0, 1 << 30, 0);
  const Outcomes outcomes = run_ranks(ranks(), [&](Communicator& comm) {
    ASSERT_EQ(comm.group()->why_not(device_of(comm).get()), "");
    comm.group()->prepare(device_of(comm), deadline_in(0.3));
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message(), HasSubstr("for NCCL to connect the ranks"));
  }
  EXPECT_EQ(count("ncclCommAbort"), 0);
  release();
  EXPECT_TRUE(wait_for([&] { return count("ncclCommAbort") == 2; }));
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
