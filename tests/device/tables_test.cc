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

TEST_F(TablesTest, TablesOutliveTheHandleOfTheirPool) {
  const auto tables = uploaded();
  pool_.reset();
  tables->use(a_.get());
}

}  // namespace
}  // namespace bdcp::device
