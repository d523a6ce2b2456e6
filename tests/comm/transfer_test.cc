// Moving rows between ranks in host memory, by every kind of group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "comm/rank_threads.h"
#include "comm/row_copy.h"
#include "comm/socket_ranks.h"
#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::CopyPlan;
using comm::GatherOp;
using comm::plan_copy;
using comm::StridedRows;
using comm::TransferOp;
using test::all_well;
using test::describe;
using test::Outcomes;
using test::run_ranks;
using testing::HasSubstr;

struct Order {
  const char* name;
  std::int64_t row_stride, head_stride;
};
constexpr std::int64_t kRows = 5, kHeads = 3, kBytes = 8;
const Order kOrders[] = {{"packed", kHeads* kBytes, kBytes},
                         {"wide rows", kHeads* kBytes + 16, kBytes},
                         {"wide heads", kHeads*(kBytes + 4), kBytes + 4},
                         {"heads first", kBytes, kRows* kBytes},
                         {"wide both", 100, 24}};

std::size_t extent(const Order& order) {
  return static_cast<std::size_t>((kRows - 1) * order.row_stride + (kHeads - 1) * order.head_stride + kBytes);
}
StridedRows rows_in(std::vector<std::byte>& memory, const Order& order) {
  return {memory.data(), kRows, kHeads, kBytes, order.row_stride, order.head_stride};
}

TEST(PlanCopy, UsesTheFewestCopies) {
  const auto copies = [](const Order& dst, const Order& src) {
    std::vector<std::byte> to(extent(dst)), from(extent(src));
    const CopyPlan plan = plan_copy(rows_in(to, dst), rows_in(from, src));
    return std::pair(plan.repeat, plan.piece.count);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(copies(kOrders[0], kOrders[0]), Pair(1, 1));               // one range
  EXPECT_EQ(copies(kOrders[3], kOrders[3]), Pair(1, 1));               // one range in another order
  EXPECT_EQ(copies(kOrders[0], kOrders[1]), Pair(1, kRows));           // one 2-D copy
  EXPECT_EQ(copies(kOrders[0], kOrders[2]), Pair(1, kRows * kHeads));  // one 2-D copy of heads
  EXPECT_EQ(copies(kOrders[0], kOrders[3]), Pair(kHeads, kRows));      // one per head, not one per row
}

TEST(PlanCopy, EveryPairOfOrdersMovesEveryByteAndNoOther) {
  for (const Order& src : kOrders)
    for (const Order& dst : kOrders) {
      SCOPED_TRACE(std::string(src.name) + " -> " + dst.name);
      std::vector<std::byte> from(extent(src)), to(extent(dst), std::byte{0xee}), expected = to;
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 199);
      for (std::int64_t r = 0; r < kRows; ++r)
        for (std::int64_t h = 0; h < kHeads; ++h)
          for (std::int64_t b = 0; b < kBytes; ++b)
            expected[static_cast<std::size_t>(r * dst.row_stride + h * dst.head_stride + b)] =
                from[static_cast<std::size_t>(r * src.row_stride + h * src.head_stride + b)];
      comm::copy_on_host(rows_in(to, dst), rows_in(from, src));
      EXPECT_EQ(to, expected);
    }
}

TEST(PlanCopy, RepeatedSourceRowsAreAllowed) {
  std::vector<std::byte> from(kBytes, std::byte{7}), to(kRows * kHeads * kBytes);
  comm::copy_on_host({to.data(), kRows, kHeads, kBytes, kHeads * kBytes, kBytes},
                     {from.data(), kRows, kHeads, kBytes, 0, 0});
  EXPECT_THAT(to, testing::Each(std::byte{7}));
}

std::vector<int> numbers(std::size_t count, int first) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}
StridedRows as_rows(std::vector<int>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size()), 1, 4, 4, 4};
}

using Exchange = testing::TestWithParam<test::GroupKind>;
INSTANTIATE_TEST_SUITE_P(Kinds, Exchange, testing::ValuesIn(test::kGroupKinds), test::kind_name);

TEST_P(Exchange, PairsOperationsInOrderAndFreesTheSourceOnReturn) {
  const Outcomes outcomes = run_ranks(GetParam().make(4), [](Communicator& handle) {
    const int rank = handle.rank(), next = (rank + 1) % 4, previous = (rank + 3) % 4;
    for (int round = 0; round < 50; ++round) {
      std::vector<int> first = numbers(100, 1000 * rank + round), second = numbers(3, -rank), none;
      std::vector<int> got_first(100), got_second(3);
      const TransferOp sends[] = {
          {next, as_rows(first)}, {previous, as_rows(none)}, {next, as_rows(second)}, {rank, as_rows(second)}};
      std::vector<int> own(3);
      const TransferOp recvs[] = {
          {previous, as_rows(got_first)}, {rank, as_rows(own)}, {previous, as_rows(got_second)}};
      handle.group()->exchange(sends, recvs, {}, {});
      const std::vector<int> expected_own = second;
      first.assign(100, -1);  // the source may be reused at once
      second.assign(3, -1);
      ASSERT_EQ(got_first, numbers(100, 1000 * previous + round));
      ASSERT_EQ(got_second, numbers(3, -previous));
      ASSERT_EQ(own, expected_own);
    }
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_P(Exchange, GathersOwnRowsTooUnlessTheyLieThere) {
  for (const bool in_place : {false, true}) {
    const Outcomes outcomes = run_ranks(GetParam().make(3), [&](Communicator& handle) {
      const int rank = handle.rank();
      std::vector<int> own = numbers(5, 10 * rank), all(15, -1), small = {rank}, all_small(3);
      if (in_place) std::copy(own.begin(), own.end(), all.begin() + 5 * rank);
      const GatherOp ops[] = {{in_place ? as_rows(all).slice(5 * rank, 5) : as_rows(own), as_rows(all)},
                              {as_rows(small), as_rows(all_small)}};
      handle.group()->all_gather(ops, {}, {});
      for (int peer = 0; peer < 3; ++peer)
        for (int i = 0; i < 5; ++i) ASSERT_EQ(all[static_cast<std::size_t>(5 * peer + i)], 10 * peer + i);
      ASSERT_EQ(all_small, (std::vector<int>{0, 1, 2}));
    });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  }
}

/// Every rank ends with the same divergence that holds `words`.
void expect_divergence(const Outcomes& outcomes, const std::vector<std::string>& words) {
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome) << describe(outcomes);
    EXPECT_EQ(outcome->code(), ErrorCode::divergence) << outcome->what();
    EXPECT_EQ(outcome->scope(), ErrorScope::communicator);
    EXPECT_EQ(outcome->message(), outcomes[0]->message());
    for (const std::string& word : words) EXPECT_THAT(outcome->message(), HasSubstr(word));
  }
}

TEST_P(Exchange, SidesThatDoNotMatchAreNamedOnEveryRank) {
  struct Case {
    std::size_t sent, expected;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {8, 9, {"from rank 2 to rank 0", "8 rows of 1 x 4 bytes are sent, 9 rows of 1 x 4 are expected"}},
      {8, 0, {"from rank 2 to rank 0", "32 bytes are sent that nobody expects"}},
      {0, 9, {"from rank 2 to rank 0", "36 bytes are expected that the source does not send"}}};
  for (const Case& c : cases) {
    const Outcomes outcomes = run_ranks(GetParam().make(3), [&](Communicator& handle) {
      // Freed as the error unwinds: a peer that still read it would be caught by the sanitizers.
      std::vector<int> source(c.sent), target(c.expected);
      const TransferOp send{0, as_rows(source)}, recv{2, as_rows(target)};
      const bool sender = handle.rank() == 2 && c.sent > 0, receiver = handle.rank() == 0 && c.expected > 0;
      handle.group()->exchange({&send, sender ? 1u : 0u}, {&recv, receiver ? 1u : 0u}, {}, {});
    });
    expect_divergence(outcomes, c.words);
  }
}

TEST_P(Exchange, GathersThatDifferAreNamedOnEveryRank) {
  for (const std::size_t odd : {std::size_t{0}, std::size_t{3}}) {
    const Outcomes outcomes = run_ranks(GetParam().make(3), [&](Communicator& handle) {
      std::vector<int> own(handle.rank() == 1 ? odd : 2), all(own.size() * 3);
      const GatherOp op{as_rows(own), as_rows(all)};
      handle.group()->all_gather({&op, 1}, {}, {});
    });
    expect_divergence(outcomes, {"transfer from rank "});
  }
}

TEST_P(Exchange, RanksInDifferentCallsAreNamedOnEveryRank) {
  const Outcomes outcomes = run_ranks(GetParam().make(3), [](Communicator& handle) {
    std::vector<int> own(1), all(3);
    const GatherOp op{as_rows(own), as_rows(all)};
    if (handle.rank() == 1) {
      handle.group()->all_gather({&op, 1}, {}, {});
    } else {
      handle.group()->exchange({}, {}, {}, {});
    }
  });
  expect_divergence(outcomes, {"ranks 0, 2 in exchange in host memory", "rank 1 in all-gather in host memory"});
}

TEST_P(Exchange, ALateStarterIsNotDead) {
  const Outcomes outcomes = run_ranks(GetParam().make(2), [](Communicator& handle) {
    if (handle.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    handle.group()->exchange({}, {}, {}, {.start_s = 60, .run_s = 0.1});
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_P(Exchange, ARankThatNeverStartsIsNamed) {
  const auto ranks = GetParam().make(3);
  const Outcomes outcomes = run_ranks(ranks, [](Communicator& handle) {
    if (handle.rank() != 1) handle.group()->exchange({}, {}, {}, {.start_s = 0.05, .run_s = 60});
  });
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank]->code(), ErrorCode::timeout);
    EXPECT_THAT(outcomes[rank]->message(), HasSubstr("rank 1 did not come to the exchange"));
  }
}

TEST_P(Exchange, ArgumentsAreCheckedBeforeAnybodyIsInvolved) {
  const auto ranks = GetParam().make(2);
  std::vector<int> values(2);
  const TransferOp op{2, as_rows(values)};
  test::expect_error(ErrorCode::invalid_argument, {"peer is 2", "0 to 1"}, [&] {
    ranks[0].group()->exchange({&op, 1}, {}, {}, {});
  });
  const GatherOp gather{as_rows(values), as_rows(values)};
  test::expect_error(ErrorCode::invalid_argument, {"destination is 2 rows", "4 rows"}, [&] {
    ranks[0].group()->all_gather({&gather, 1}, {}, {});
  });
  ranks[1].check();
}

TEST(Deadlines, AreClampedToWhatClocksCanHold) {
  const auto now = std::chrono::steady_clock::now();
  const auto past = comm::deadline_in(-5);
  EXPECT_GE(past, now);
  EXPECT_LE(past, std::chrono::steady_clock::now());
  EXPECT_GT(comm::deadline_in(1e300), now + std::chrono::hours(24));
}

}  // namespace
}  // namespace bdcp
