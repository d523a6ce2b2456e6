// The order of work lists: the costliest first, so that no long piece starts last.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace bdcp::plan {

/// Sorts `items` by descending cost(item) >= 0, stable. Radix sort of the costs: lists have thousands of items,
/// and moving each of them log n times would be most of what a step costs.
template <class T, class Cost>
void sort_costliest_first(std::vector<T>& items, const Cost& cost) {
  struct Key {
    std::uint64_t cost;
    std::uint32_t index;
  };
  constexpr int kBits = 10;
  constexpr std::uint64_t kDigits = std::uint64_t{1} << kBits;
  std::vector<Key> keys(items.size()), scratch(items.size());
  std::uint64_t most = 0, any = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    keys[i] = {static_cast<std::uint64_t>(cost(items[i])), static_cast<std::uint32_t>(i)};
    most = std::max(most, keys[i].cost);
    any |= keys[i].cost;
  }
  // Whole tiles give multiples of a power of two, whose low bits tell nothing.
  for (int shift = any ? std::countr_zero(any) : 64; shift < 64 && most >> shift != 0; shift += kBits) {
    const auto digit = [&](const Key& key) { return (key.cost >> shift) % kDigits; };
    std::array<std::uint32_t, kDigits> next{};
    for (const Key& key : keys) ++next[digit(key)];
    std::uint32_t sum = 0;
    for (std::uint64_t d = kDigits; d-- > 0;) {
      const std::uint32_t count = next[d];
      next[d] = sum;
      sum += count;
    }
    for (const Key& key : keys) scratch[next[digit(key)]++] = key;
    keys.swap(scratch);
  }
  std::vector<T> sorted;
  sorted.reserve(items.size());
  for (const Key& key : keys) sorted.push_back(items[key.index]);
  items.swap(sorted);
}

}  // namespace bdcp::plan
