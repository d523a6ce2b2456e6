#include "comm/awake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace bdcp::comm {
namespace {

TEST(Awake, EndsWhenTheAnswerIsNotDueAnyMore) {
  Awake awake;
  EXPECT_FALSE(awake.stay(Awake::Clock::now() - Awake::kLongest));
  const auto start = Awake::Clock::now();
  while (awake.stay(start)) {
  }
  EXPECT_FALSE(awake.stay(start));
}

// More threads than cores, none of which ever sleeps by itself: all get to rest.
TEST(Awake, EndsAmongOthersThatAreBusy) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  for (unsigned i = 0; i < 2 * std::max(std::thread::hardware_concurrency(), 1u); ++i)
    others.emplace_back([&] {
      while (!stop) {
      }
    });
  Awake awake;
  const auto end = Awake::Clock::now() + std::chrono::seconds(20);
  const auto rests = [&] { return !awake.stay(Awake::Clock::now()); };
  while (!rests() && Awake::Clock::now() < end) {
  }
  EXPECT_LT(Awake::Clock::now(), end);
  stop = true;
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace bdcp::comm
