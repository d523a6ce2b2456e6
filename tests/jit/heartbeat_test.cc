#include "jit/heartbeat.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace bdcp::jit {
namespace {

TEST(Heartbeat, BeatsUntilItEnds) {
  std::atomic<int> beats{0};
  std::atomic<double> last{0};
  {
    Heartbeat heartbeat(0.002, [&](double seconds) {
      last = seconds;
      ++beats;
    });
    while (beats < 3) std::this_thread::yield();
  }
  const int after = beats;
  EXPECT_GT(last, 0.0);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(beats, after);
}

TEST(Heartbeat, EndsAtOnceWithoutABeat) {
  std::atomic<int> beats{0};
  {
    Heartbeat heartbeat(3600, [&](double) { ++beats; });
  }
  EXPECT_EQ(beats, 0);
}

}  // namespace
}  // namespace bdcp::jit
