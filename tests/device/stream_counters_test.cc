// Counters of streams over a fake libcuda.
#include "device/stream_counters.h"

#include <gtest/gtest.h>

#include <set>

#include "device/fake_driver.h"

namespace bdcp::device {
namespace {

void* stream(std::uintptr_t id) { return reinterpret_cast<void*>(id); }

class StreamCountersTest : public FakeDriver {};

TEST_F(StreamCountersTest, OnePerStream) {
  StreamCounters counters(device());
  int* const a = counters.of(stream(0x100), false);
  int* const b = counters.of(stream(0x200), false);
  EXPECT_NE(a, b);
  EXPECT_EQ(counters.of(stream(0x100), false), a);
  EXPECT_EQ(counters.of(stream(0x100), false), a);
  EXPECT_EQ(counters.of(stream(0x200), false), b);
  EXPECT_EQ(calls("cuMemAlloc"), 1);
}

TEST_F(StreamCountersTest, EveryCapturedLaunchHasItsOwn) {
  StreamCounters counters(device());
  std::set<int*> all{counters.of(stream(0x100), false)};
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(all.insert(counters.of(stream(0x100), true)).second);
  EXPECT_FALSE(all.insert(counters.of(stream(0x100), false)).second);
}

TEST_F(StreamCountersTest, NoneWhenAllAreTaken) {
  StreamCounters counters(device());
  std::set<int*> all;
  for (std::uintptr_t id = 1; id <= StreamCounters::kCounters; ++id)
    EXPECT_TRUE(all.insert(counters.of(stream(id), false)).second);
  EXPECT_EQ(all.count(nullptr), 0u);
  EXPECT_EQ(counters.of(stream(StreamCounters::kCounters + 1), false), nullptr);
  EXPECT_EQ(counters.of(stream(1), true), nullptr);
  EXPECT_NE(counters.of(stream(1), false), nullptr);
}

}  // namespace
}  // namespace bdcp::device
