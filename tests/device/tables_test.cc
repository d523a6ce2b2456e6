// Tables and their pool over the fake libcuda: what is allocated and copied, and when memory is used again.
#include "device/tables.h"

#include <algorithm>
#include <vector>

#include "device/fake_driver.h"

namespace bdcp::device {
namespace {

constexpr int kNotReady = 600;

class TablesTest : public FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    device_ = device();
    pool_ = std::make_shared<TablePool>(device_);
    a_ = device_->create_stream();
    b_ = device_->create_stream();
  }
  std::shared_ptr<Tables> uploaded(std::size_t bytes = 1000) {
    auto tables = pool_->make_tables();
    tables->add(std::vector<char>(bytes).data(), bytes);
    tables->upload();
    return tables;
  }
  void capture(bool on) { call<void(int)>("fake_capture")(on); }
  int allocations() { return calls("cuMemAlloc") + calls("cuMemHostAlloc") + calls("cuEventCreate"); }

  std::shared_ptr<Device> device_;
  std::shared_ptr<TablePool> pool_;
  OwnedStream a_, b_;
};

TEST_F(TablesTest, OneCopyForAllTables) {
  const auto tables = pool_->make_tables();
  const char bytes[300] = {};
  EXPECT_EQ(tables->add(bytes, 300), 0u);
  EXPECT_EQ(tables->add(bytes, 0), 512u);
  EXPECT_EQ(tables->add(bytes, 1), 512u);
  EXPECT_EQ(calls("cuMemcpyAsync"), 0);
  tables->upload();
  EXPECT_EQ(calls("cuMemcpyAsync"), 1);
  EXPECT_EQ(calls("cuStreamSynchronize") + calls("cuEventSynchronize"), 0);
  EXPECT_EQ(static_cast<const char*>(tables->at(512)) - static_cast<const char*>(tables->at(0)), 512);
  EXPECT_EQ(error_of([&] { tables->add(bytes, 1); }).code(), ErrorCode::internal);
}

TEST_F(TablesTest, NothingToUploadNeedsNoMemory) {
  const auto tables = pool_->make_tables();
  tables->upload();
  tables->use(a_.get());
  EXPECT_EQ(allocations() + calls("cuMemcpyAsync") + calls("cuStreamWaitEvent"), 0);
}

TEST_F(TablesTest, CallsWaitForTheCopyOnTheirStreamUntilItHasArrived) {
  const auto tables = uploaded();
  fail("cuEventQuery", kNotReady);
  tables->use(a_.get());
  tables->use(b_.get());
  EXPECT_EQ(calls("cuStreamWaitEvent"), 2);
  fail("cuEventQuery", 0);
  tables->use(a_.get());
  const int queries = calls("cuEventQuery");
  tables->use(a_.get());
  tables->use(b_.get());
  EXPECT_EQ(calls("cuEventQuery"), queries);
  EXPECT_EQ(calls("cuStreamWaitEvent"), 2);
}

TEST_F(TablesTest, MemoryIsUsedAgainOnceEveryStreamHasPassed) {
  auto first = uploaded();
  const void* const memory = first->at(0);
  first->use(a_.get());
  first->use(b_.get());
  first.reset();
  auto second = uploaded();  // a and b may still run kernels of the first
  EXPECT_NE(second->at(0), memory);
  second->use(a_.get());
  EXPECT_NE(uploaded()->at(0), memory);
  second->use(b_.get());
  fail("cuEventQuery", kNotReady);
  EXPECT_NE(uploaded()->at(0), memory);
  fail("cuEventQuery", 0);
  std::vector<std::shared_ptr<Tables>> later;  // some of which take what never was in use
  for (int i = 0; i < 4; ++i) later.push_back(uploaded());
  EXPECT_TRUE(
      std::any_of(later.begin(), later.end(), [&](const auto& tables) { return tables->at(0) == memory; }));
}

TEST_F(TablesTest, WhatWasNeverUsedIsFreeAtOnce) {
  const void* const memory = uploaded()->at(0);
  EXPECT_EQ(uploaded()->at(0), memory);
  EXPECT_NE(uploaded(1 << 20)->at(0), memory);  // too small
}

TEST_F(TablesTest, StepsInTurnAllocateNothing) {
  for (int step = 0; step < 4; ++step) uploaded()->use(a_.get());
  const int before = allocations();
  for (int step = 0; step < 100; ++step) {
    const auto tables = uploaded();
    for (int call = 0; call < 3; ++call) tables->use(a_.get());
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(calls("cuMemFree"), 0);
}

// Streams come and go with the steps: their memory goes back to the driver, which waits for kernels, in
// batches.
TEST_F(TablesTest, MemoryOfStreamsThatAreGoneIsFreed) {
  for (int step = 0; step < 200; ++step) {
    const OwnedStream stream = device_->create_stream();
    uploaded()->use(stream.get());
  }
  EXPECT_GT(calls("cuMemFree"), 100);
  EXPECT_EQ(calls("cuMemFree"), calls("cuMemFreeHost"));
}

TEST_F(TablesTest, NoEventIsRecordedIntoACapture) {
  uploaded()->use(a_.get());
  const auto tables = uploaded();
  call<void(int)>("fake_capture")(1);
  const int records = calls("cuEventRecord");
  tables->use(a_.get());
  EXPECT_EQ(calls("cuEventRecord"), records);
  call<void(int)>("fake_capture")(0);
  tables->use(a_.get());
  EXPECT_EQ(calls("cuEventRecord"), records + 1);
}

// The event of the copy is from outside of the graph: a capture could neither wait for it nor ask for it.
TEST_F(TablesTest, CapturedCallsFindTablesThatAreStillOnTheirWay) {
  call<void(int)>("fake_hold_events")(1);
  const auto tables = uploaded();
  call<void(int)>("fake_hold_events")(0);
  EXPECT_FALSE(tables->captured());
  capture(true);
  EXPECT_TRUE(tables->use(a_.get()));
  EXPECT_TRUE(tables->use(b_.get()));
  capture(false);
  EXPECT_EQ(calls("cuEventSynchronize"), 1);
  EXPECT_EQ(calls("cuStreamWaitEvent"), 0);
  EXPECT_TRUE(tables->captured());
  EXPECT_FALSE(tables->use(a_.get()));
}

TEST_F(TablesTest, MemoryThatGraphsReadIsFreedAndNeverUsedAgain) {
  auto tables = uploaded();
  const void* const memory = tables->at(0);
  capture(true);
  tables->use(a_.get());
  tables.reset();  // also while a stream is being captured
  EXPECT_EQ(calls("cuMemFree"), 1);
  capture(false);
  EXPECT_EQ(calls("cuMemFree"), calls("cuMemFreeHost"));
  EXPECT_NE(uploaded()->at(0), memory);
}

TEST_F(TablesTest, CountsStandSideBySideBehindTheirFirst) {
  const auto tables = pool_->make_tables();
  EXPECT_EQ(tables->add_count(1), 0u);
  EXPECT_EQ(tables->add("x", 1), 256u);
  for (std::size_t i = 1; i < 64; ++i) EXPECT_EQ(tables->add_count(2), 4 * i);
  EXPECT_EQ(tables->add_count(3), 512u);
}

class PlacesTest : public TablesTest {
 protected:
  std::shared_ptr<Tables> filled(std::size_t items) {
    auto tables = pool_->make_tables();
    tables->add(std::vector<char>(items).data(), items, 500);
    tables->add_count(static_cast<int>(items));
    return tables;
  }
  void SetUp() override {
    TablesTest::SetUp();
    first_ = filled(100);
    first_->upload();
    second_ = filled(500);
    second_->join(first_);
  }
  void expect_refused(const Tables& tables) {
    const Error error = error_of([&] { tables.use(a_.get()); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(error.message().find("refill"), std::string::npos);
  }
  std::shared_ptr<Tables> first_, second_;
};

TEST_F(PlacesTest, OneCopyOnTheStreamBringsTheOthers) {
  EXPECT_EQ(second_->at(256), first_->at(256));
  EXPECT_EQ(calls("cuMemcpyAsync"), 1);
  expect_refused(*second_);
  first_->use(a_.get());
  second_->refill(b_.get());
  EXPECT_EQ(calls("cuMemcpyAsync"), 2);
  EXPECT_EQ(call<void*()>("fake_copied_on")(), b_.get());
  EXPECT_EQ(call<void*()>("fake_copied_to")(), first_->at(0));
  second_->use(b_.get());
  expect_refused(*first_);
  first_->refill(a_.get());
  first_->use(a_.get());
  expect_refused(*second_);
  EXPECT_EQ(calls("cuStreamSynchronize") + calls("cuEventSynchronize"), 0);
}

TEST_F(PlacesTest, RefillsFollowTheUpload) {
  call<void(int)>("fake_hold_events")(1);
  const auto first = filled(3);
  first->upload();
  call<void(int)>("fake_hold_events")(0);
  const auto second = filled(4);
  second->join(first);
  const int waits = calls("cuStreamWaitEvent");
  second->refill(a_.get());
  EXPECT_EQ(calls("cuStreamWaitEvent"), waits + 1);
}

TEST_F(PlacesTest, NoRefillIntoACapture) {
  capture(true);
  EXPECT_EQ(error_of([&] { second_->refill(a_.get()); }).code(), ErrorCode::invalid_argument);
  capture(false);
  first_->use(a_.get());  // still the first ones
}

TEST_F(PlacesTest, TheySurviveTheirFirst) {
  const void* const memory = first_->at(0);
  first_.reset();
  EXPECT_NE(uploaded()->at(0), memory);
  const auto third = filled(1);
  third->join(second_);
  EXPECT_EQ(third->at(0), memory);
  third->refill(a_.get());
  second_.reset();
  third->use(a_.get());
}

TEST_F(PlacesTest, WhatRefillsReadIsNotOverwrittenBeforeTheyHavePassed) {
  const void* const memory = second_->at(0);
  second_->refill(a_.get());
  second_.reset();
  std::vector<std::shared_ptr<Tables>> later;
  for (int i = 0; i < 3; ++i) later.push_back(uploaded());
  EXPECT_EQ(calls("cuMemHostAlloc"), 5);  // the copy on stream a may still read that of the second
  first_->refill(a_.get());               // an event after it is recorded now
  later.push_back(uploaded());
  EXPECT_EQ(calls("cuMemHostAlloc"), 5);
  EXPECT_NE(later.back()->at(0), memory);
}

TEST_F(PlacesTest, TurnsAllocateNothing) {
  const auto turn = [&] {
    const auto next = filled(7);
    next->join(first_);
    next->refill(a_.get());
  };
  for (int i = 0; i < 4; ++i) turn();
  const int before = allocations();
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(calls("cuMemFree"), 0);
}

TEST_F(PlacesTest, OtherRoomsAreABug) {
  const auto other = pool_->make_tables();
  other->add("x", 1, 800);
  EXPECT_EQ(error_of([&] { other->join(first_); }).code(), ErrorCode::internal);
}

TEST_F(TablesTest, TablesOutliveTheHandleOfTheirPool) {
  const auto tables = uploaded();
  pool_.reset();
  tables->use(a_.get());
}

}  // namespace
}  // namespace bdcp::device
