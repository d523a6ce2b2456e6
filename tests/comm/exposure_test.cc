// Waits for transfers are timed without anybody waiting for the figure.
#include "comm/exposure.h"

#include <gtest/gtest.h>

#include "device/fake_driver.h"

namespace bdcp::comm {
namespace {

TEST(ExposedTime, AddsUpByDirectionAndIntoTheTotal) {
  const auto total = std::make_shared<ExposedTime>();
  ExposedTime one(total), other(total);
  one.add(Direction::forward, 1.5);
  one.add(Direction::forward, -3);  // the transfer was there first
  other.add(Direction::backward, 2);
  other.miss();
  EXPECT_EQ(one.us(Direction::forward), 1.5);
  EXPECT_EQ(one.waits(Direction::forward), 2u);
  EXPECT_EQ(one.us(Direction::backward), 0);
  EXPECT_EQ(total->us(Direction::forward), 1.5);
  EXPECT_EQ(total->us(Direction::backward), 2);
  EXPECT_EQ(total->waits(Direction::backward), 1u);
  EXPECT_EQ(total->missed(), 1u);
}

class ExposureMeterTest : public device::FakeDriver {
 protected:
  /// A wait that the fake's device takes a millisecond for.
  bool wait(ExposureMeter& meter, const std::shared_ptr<ExposedTime>& sum) {
    auto events = meter.take();
    if (!events) return false;
    device_->record(events->ready.get(), nullptr);
    device_->record(events->arrived.get(), nullptr);
    meter.add(std::move(*events), Direction::forward, sum);
    return true;
  }
  void hold(bool on) { call<void(int)>("fake_hold_events")(on); }
  void finish() { call<void()>("fake_finish_events")(); }

  void SetUp() override {
    FakeDriver::SetUp();
    device_ = device();
  }
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<ExposedTime> sum_ = std::make_shared<ExposedTime>();
};

TEST_F(ExposureMeterTest, ReadsWhatHasComeAboutAndWaitsForNothing) {
  ExposureMeter meter(device_);
  hold(true);
  EXPECT_TRUE(wait(meter, sum_));
  hold(false);
  EXPECT_TRUE(wait(meter, sum_));
  meter.read();
  EXPECT_EQ(sum_->waits(Direction::forward), 1u);  // the one behind it is not hidden
  EXPECT_EQ(sum_->us(Direction::forward), 1000);
  finish();
  meter.read();
  EXPECT_EQ(sum_->waits(Direction::forward), 2u);
  EXPECT_EQ(calls("cuEventSynchronize") + calls("cuStreamSynchronize"), 0);
}

TEST_F(ExposureMeterTest, EventsAreUsedAgain) {
  ExposureMeter meter(device_);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(wait(meter, sum_));
    meter.read();
  }
  auto unused = meter.take();
  ASSERT_TRUE(unused);
  meter.give_back(std::move(*unused));
  EXPECT_TRUE(wait(meter, sum_));
  EXPECT_EQ(calls("cuEventCreate"), 2);
}

TEST_F(ExposureMeterTest, TooFarAheadGoesUntimed) {
  ExposureMeter meter(device_);
  hold(true);
  int timed = 0;
  while (timed < 10000 && wait(meter, sum_)) ++timed;
  EXPECT_EQ(timed, 256);
  const int queries = calls("cuEventQuery");
  EXPECT_FALSE(wait(meter, sum_));
  EXPECT_LE(calls("cuEventQuery") - queries, 8);  // of the oldest alone
  hold(false);
  finish();
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(wait(meter, sum_));  // it reads by itself when it needs events
  EXPECT_GE(sum_->waits(Direction::forward), 256u);
  meter.read();
  EXPECT_EQ(sum_->waits(Direction::forward), 556u);
}

TEST_F(ExposureMeterTest, AFailingDeviceCostsTheFigureOnly) {
  ExposureMeter meter(device_);
  EXPECT_TRUE(wait(meter, sum_));
  fail("cuEventElapsedTime", 999);
  EXPECT_NO_THROW(meter.read());
  EXPECT_EQ(sum_->waits(Direction::forward), 0u);
  EXPECT_EQ(sum_->missed(), 1u);
}

}  // namespace
}  // namespace bdcp::comm
