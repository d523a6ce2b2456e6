#include "support/covering.h"

#include <algorithm>
#include <stdexcept>

namespace bdcp::test {
namespace {

bool contains(const DesignRow& row, const DesignRow& part) {
  for (std::size_t f = 0; f < row.size(); ++f)
    if (part[f] >= 0 && row[f] != part[f]) return false;
  return true;
}

/// Whether choosing more levels can still make `row` contain `part`.
bool agrees(const DesignRow& row, const DesignRow& part) {
  for (std::size_t f = 0; f < row.size(); ++f)
    if (part[f] >= 0 && row[f] >= 0 && row[f] != part[f]) return false;
  return true;
}

void add_sets(const std::vector<int>& factors, int strength, std::size_t from, std::vector<int>& chosen,
              std::vector<std::vector<int>>& out) {
  if (static_cast<int>(chosen.size()) == strength) {
    if (std::find(out.begin(), out.end(), chosen) == out.end()) out.push_back(chosen);
    return;
  }
  for (std::size_t i = from; i < factors.size(); ++i) {
    chosen.push_back(factors[i]);
    add_sets(factors, strength, i + 1, chosen, out);
    chosen.pop_back();
  }
}

}  // namespace

CoveringDesign& CoveringDesign::cover(const std::vector<int>& factors, int strength) {
  std::vector<int> chosen;
  add_sets(factors, strength, 0, chosen, combinations);
  return *this;
}

CoveringDesign& CoveringDesign::cover_all(int strength) {
  std::vector<int> factors;
  for (std::size_t f = 0; f < levels.size(); ++f) factors.push_back(static_cast<int>(f));
  return cover(factors, strength);
}

bool CoveringDesign::completes(DesignRow& row) const {
  if (allowed && !allowed(row)) return false;
  const auto open = std::find(row.begin(), row.end(), -1);
  if (open == row.end()) return true;
  const auto factor = static_cast<std::size_t>(open - row.begin());
  for (int level = 0; level < levels[factor]; ++level) {
    row[factor] = level;
    if (completes(row)) {
      row[factor] = -1;
      return true;
    }
  }
  row[factor] = -1;
  return false;
}

std::vector<DesignRow> CoveringDesign::required() const {
  std::vector<DesignRow> parts;
  for (const std::vector<int>& set : combinations) {
    DesignRow part(levels.size(), -1);
    const std::function<void(std::size_t)> choose = [&](std::size_t i) {
      if (i == set.size()) {
        if (completes(part)) parts.push_back(part);
        return;
      }
      const auto factor = static_cast<std::size_t>(set[i]);
      for (int level = 0; level < levels[factor]; ++level) {
        part[factor] = level;
        choose(i + 1);
      }
      part[factor] = -1;
    };
    choose(0);
  }
  return parts;
}

std::vector<DesignRow> CoveringDesign::rows() const {
  std::vector<DesignRow> open = required(), rows;
  std::stable_sort(open.begin(), open.end(), [](const DesignRow& a, const DesignRow& b) {
    return std::count(a.begin(), a.end(), -1) < std::count(b.begin(), b.end(), -1);
  });
  while (!open.empty()) {
    DesignRow row = open.front();
    for (std::size_t f = 0; f < levels.size(); ++f) {
      if (row[f] >= 0) continue;
      int best = -1;
      long best_gain = -1;
      for (int i = 0; i < levels[f]; ++i) {
        // Ties go round, so that levels nothing asks for are spread evenly.
        row[f] = (i + static_cast<int>(rows.size())) % levels[f];
        if (!completes(row)) continue;
        long gain = 0;
        for (const DesignRow& part : open) {
          if (part[f] != row[f] || !agrees(row, part)) continue;
          gain += contains(row, part) ? 1000 : 1;
        }
        if (gain > best_gain) {
          best_gain = gain;
          best = row[f];
        }
      }
      if (best < 0) throw std::logic_error("covering design: a combination lost its completion");
      row[f] = best;
    }
    std::erase_if(open, [&](const DesignRow& part) { return contains(row, part); });
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<DesignRow> CoveringDesign::missing(const std::vector<DesignRow>& rows) const {
  std::vector<DesignRow> parts = required();
  std::erase_if(parts, [&](const DesignRow& part) {
    return std::any_of(rows.begin(), rows.end(), [&](const DesignRow& row) { return contains(row, part); });
  });
  return parts;
}

}  // namespace bdcp::test
