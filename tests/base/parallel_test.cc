#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace bdcp {
namespace {

TEST(ParallelFor, RunsEveryIndexExactlyOnce) {
  for (const int threads : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> runs(1000);
    parallel_for(
        1000, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; }, threads);
    for (const auto& count : runs) ASSERT_EQ(count, 1) << threads << " threads";
  }
}

TEST(ParallelFor, NothingToDo) {
  int calls = 0;
  parallel_for(0, [&](std::int64_t) { ++calls; });
  parallel_for(-3, [&](std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 0);
}

TEST(ParallelFor, OneThreadIsTheCallerInOrder) {
  std::vector<std::int64_t> order;
  const auto caller = std::this_thread::get_id();
  parallel_for(
      5,
      [&](std::int64_t i) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        order.push_back(i);
      },
      1);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(ParallelFor, UsesNoMoreThreadsThanAsked) {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  parallel_for(
      200,
      [&](std::int64_t) {
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
      },
      3);
  EXPECT_GE(seen.size(), 1u);
  EXPECT_LE(seen.size(), 3u);
}

TEST(ParallelFor, RethrowsAndStopsHandingOutWork) {
  std::atomic<int> calls = 0;
  const auto body = [&](std::int64_t i) {
    ++calls;
    if (i == 0) throw std::runtime_error("index 0");
  };
  EXPECT_THROW(parallel_for(1'000'000, body, 1), std::runtime_error);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(parallel_for(64, body, 4), std::runtime_error);
}

}  // namespace
}  // namespace bdcp
