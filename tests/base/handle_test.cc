#include "base/handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace bdcp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Traits {
  using type = int;
  static constexpr type null = -1;
  std::vector<int>* destroyed = nullptr;
  void destroy(type value) noexcept { destroyed->push_back(value); }
};
using TestHandle = Handle<Traits>;

static_assert(!std::is_copy_constructible_v<TestHandle> && !std::is_copy_assignable_v<TestHandle>);
static_assert(std::is_nothrow_move_constructible_v<TestHandle> &&
              std::is_nothrow_move_assignable_v<TestHandle>);

TEST(Handle, DestroysOnceAndOnlyWhatItOwns) {
  std::vector<int> destroyed;
  {
    TestHandle empty;
    EXPECT_FALSE(empty);
    EXPECT_EQ(empty.get(), Traits::null);
    TestHandle full(7, {&destroyed});
    EXPECT_TRUE(full);
    EXPECT_EQ(full.get(), 7);
  }
  EXPECT_THAT(destroyed, ElementsAre(7));
}

TEST(Handle, MovingLeavesNull) {
  std::vector<int> destroyed;
  {
    TestHandle a(1, {&destroyed});
    TestHandle b(std::move(a));
    EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): the state after a move is the point
    EXPECT_EQ(b.get(), 1);
    TestHandle c(2, {&destroyed});
    c = std::move(b);
    EXPECT_THAT(destroyed, ElementsAre(2)) << "what the target held is destroyed";
    EXPECT_EQ(c.get(), 1);
  }
  EXPECT_THAT(destroyed, ElementsAre(2, 1));
}

TEST(Handle, SelfMoveKeepsTheValue) {
  std::vector<int> destroyed;
  TestHandle a(5, {&destroyed});
  TestHandle& alias = a;
  a = std::move(alias);
  EXPECT_EQ(a.get(), 5);
  EXPECT_THAT(destroyed, IsEmpty());
  a.reset();
  EXPECT_THAT(destroyed, ElementsAre(5));
}

TEST(Handle, ReleaseGivesUpOwnership) {
  std::vector<int> destroyed;
  {
    TestHandle a(9, {&destroyed});
    EXPECT_EQ(a.release(), 9);
    EXPECT_FALSE(a);
    a.reset();
  }
  EXPECT_THAT(destroyed, IsEmpty());
}

}  // namespace
}  // namespace bdcp
