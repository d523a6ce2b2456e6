// Counters of streams over a fake libcuda.
#include "device/stream_counters.h"

#include <gtest/gtest.h>

#include <set>

#include "device/fake_driver.h"

namespace bdcp::device {
namespace {

void* stream(std::uintptr_t id) { return reinterpret_cast<void*>(id); }

class StreamCountersTest : public FakeDriver {
 protected:
  void capture(bool on) { call<void(int)>("fake_capture")(on); }
};

TEST_F(StreamCountersTest, OnePerStream) {
  StreamCounters counters(device());
  int* const a = counters.of(stream(0x100));
  int* const b = counters.of(stream(0x200));
  EXPECT_NE(a, b);
  EXPECT_EQ(counters.of(stream(0x100)), a);
  EXPECT_EQ(counters.of(stream(0x100)), a);
  EXPECT_EQ(counters.of(stream(0x200)), b);
  EXPECT_EQ(calls("cuMemAlloc"), 1);
}

TEST_F(StreamCountersTest, EveryCapturedLaunchHasItsOwn) {
  StreamCounters counters(device());
  std::set<int*> all{counters.of(stream(0x100))};
  capture(true);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(all.insert(counters.of(stream(0x100))).second);
  capture(false);
  EXPECT_FALSE(all.insert(counters.of(stream(0x100))).second);
}

TEST_F(StreamCountersTest, NoneWhenAllAreTaken) {
  StreamCounters counters(device());
  std::set<int*> all;
  for (std::uintptr_t id = 1; id <= StreamCounters::kCounters; ++id)
    EXPECT_TRUE(all.insert(counters.of(stream(id))).second);
  EXPECT_EQ(all.count(nullptr), 0u);
  EXPECT_EQ(counters.of(stream(StreamCounters::kCounters + 1)), nullptr);
  capture(true);
  EXPECT_EQ(counters.of(stream(1)), nullptr);
  capture(false);
  EXPECT_NE(counters.of(stream(1)), nullptr);
}

}  // namespace
}  // namespace bdcp::device
