// Covering designs: few rows of factor levels in which every allowed combination of chosen factors occurs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace bdcp::test {

/// A level per factor; -1: not chosen yet.
using DesignRow = std::vector<int>;

struct CoveringDesign {
  std::vector<int> levels;                     ///< number of levels of each factor
  std::vector<std::vector<int>> combinations;  ///< sets of factors whose levels must all meet
  /// False for a row that must not occur; asked about partial rows too, where -1 may still become anything.
  std::function<bool(const DesignRow&)> allowed;

  /// Adds every set of `strength` of the given factors.
  CoveringDesign& cover(const std::vector<int>& factors, int strength);
  CoveringDesign& cover_all(int strength);

  /// Greedy; a function of the design alone. Every combination that occurs in any allowed row is in one of
  /// these.
  std::vector<DesignRow> rows() const;
  /// Combinations of levels (partial rows) that some allowed row has and none of `rows` has; for tests.
  std::vector<DesignRow> missing(const std::vector<DesignRow>& rows) const;

 private:
  bool completes(DesignRow& row) const;
  std::vector<DesignRow> required() const;
};

}  // namespace bdcp::test
