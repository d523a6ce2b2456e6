// The fixture of the NCCL plane's tests: two ranks over sockets, with the tests' libnccl and libcuda.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl_plane.h"
#include "comm/rank_threads.h"
#include "comm/socket_ranks.h"
#include "device/fake_driver.h"
#include "device/nccl_library.h"

namespace bdcp::test {

using Clock = std::chrono::steady_clock;

/// fake_hold_events of the libcuda that a test has open.
inline void (*hold_events)(int) = nullptr;

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
  /// From now on what comes after a group on its stream does not come about.
  void hang(bool on) {
    fake<void(void (*)())>("fake_nccl_on_group")(on ? +[] { hold_events(1); } : nullptr);
  }
  bool wait_for(const std::function<bool()>& condition, double seconds = 3) {
    const auto end = comm::deadline_in(seconds);
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
    comm.group()->prepare(device_of(comm), comm::deadline_in(30));
  }
  std::vector<Communicator> prepared() {
    auto two = ranks();
    const Outcomes outcomes = run_ranks(two, [&](Communicator& comm) { prepare(comm); });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
    return two;
  }
  comm::Lane lane(const Communicator& comm) {
    return {Stream::cuda(reinterpret_cast<void*>(0x700), comm.rank()), device_of(comm).get()};
  }
  /// A few rows to the other rank, and as many from it.
  void exchange(const Communicator& comm, comm::TransferBounds bounds = {}) {
    const comm::StridedRows rows{reinterpret_cast<std::byte*>(0x10000), 4, 1, 16, 16, 16}, none{};
    const int peer = 1 - comm.rank();
    const comm::TransferOp ops[] = {{peer, rows}, {peer, none}};
    comm.group()->exchange(ops, ops, lane(comm), bounds);
  }
  /// What check() throws within `seconds`.
  static std::optional<Error> failure_of(const Communicator& comm, double seconds = 3) {
    for (const auto end = comm::deadline_in(seconds); Clock::now() < end;
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
    EXPECT_THAT(error->message(), testing::HasSubstr(words));
  }

  std::shared_ptr<const device::DynamicLibrary> nccl_;
  std::shared_ptr<const device::Driver> driver_;
  std::vector<std::shared_ptr<device::Device>> devices_;
};

}  // namespace bdcp::test
