// The generator of covering designs: everything allowed is met, nothing forbidden occurs, rows stay few.
#include "support/covering.h"

#include <gtest/gtest.h>

#include <set>

namespace bdcp::test {
namespace {

// Counted without the generator's own bookkeeping.
std::size_t combinations_in(const std::vector<DesignRow>& rows, const std::vector<int>& factors) {
  std::set<std::vector<int>> seen;
  for (const DesignRow& row : rows) {
    std::vector<int> levels;
    for (const int f : factors) levels.push_back(row[static_cast<std::size_t>(f)]);
    seen.insert(levels);
  }
  return seen.size();
}

TEST(Covering, PairsOfAllFactors) {
  CoveringDesign design{{4, 3, 5, 2, 2, 3}, {}, {}};
  design.cover_all(2);
  const std::vector<DesignRow> rows = design.rows();
  for (int a = 0; a < 6; ++a)
    for (int b = a + 1; b < 6; ++b)
      EXPECT_EQ(combinations_in(rows, {a, b}),
                static_cast<std::size_t>(design.levels[static_cast<std::size_t>(a)] *
                                         design.levels[static_cast<std::size_t>(b)]));
  EXPECT_TRUE(design.missing(rows).empty());
  EXPECT_LE(rows.size(), 30u);  // 20 is the least: 4 * 5
  EXPECT_EQ(rows, design.rows());
}

TEST(Covering, TriplesOfSomeFactors) {
  CoveringDesign design{{3, 3, 2, 4, 2}, {}, {}};
  design.cover_all(2).cover({0, 1, 2, 3}, 3);
  const std::vector<DesignRow> rows = design.rows();
  EXPECT_EQ(combinations_in(rows, {0, 1, 3}), 36u);
  EXPECT_EQ(combinations_in(rows, {1, 2, 3}), 24u);
  EXPECT_EQ(combinations_in(rows, {3, 4}), 8u);
  EXPECT_LE(rows.size(), 54u);
}

// Two rules that together forbid a pair neither forbids alone.
TEST(Covering, RulesHold) {
  CoveringDesign design{{2, 2, 2, 3}, {}, [](const DesignRow& r) {
                          return !(r[0] == 1 && r[1] == 1) && !(r[1] == 0 && r[2] == 1);
                        }};
  design.cover_all(2);
  const std::vector<DesignRow> rows = design.rows();
  for (const DesignRow& row : rows) EXPECT_TRUE(design.allowed(row));
  EXPECT_EQ(combinations_in(rows, {0, 1}), 3u);
  EXPECT_EQ(combinations_in(rows, {0, 2}), 3u);  // 1, 1 needs factor 1 to be both
  EXPECT_EQ(combinations_in(rows, {2, 3}), 6u);
}

TEST(Covering, MissingNamesWhatALostRowCovered) {
  CoveringDesign design{{3, 3}, {}, {}};
  design.cover_all(2);
  std::vector<DesignRow> rows = design.rows();
  const DesignRow lost = rows.back();
  rows.pop_back();
  EXPECT_EQ(design.missing(rows), std::vector<DesignRow>{lost});
}

}  // namespace
}  // namespace bdcp::test
