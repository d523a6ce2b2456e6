#include "attention/persistent_grid.h"

#include <gtest/gtest.h>

namespace bdcp::attention {
namespace {

TEST(PersistentGrid, LeavesTheMarginAndKeepsOne) {
  device::DeviceFacts facts;
  facts.sm_count = 132;
  EXPECT_EQ(persistent_ctas(1000, facts, 0), 132u);
  EXPECT_EQ(persistent_ctas(1000, facts, 16), 116u);
  EXPECT_EQ(persistent_ctas(120, facts, 16), 116u);
  EXPECT_EQ(persistent_ctas(100, facts, 16), 100u);
  EXPECT_EQ(persistent_ctas(1000, facts, 1024), 1u);
  EXPECT_EQ(persistent_ctas(1000, facts, -5), 132u);
}

}  // namespace
}  // namespace bdcp::attention
