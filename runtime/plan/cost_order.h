// The order of work lists: the costliest first, so that no long piece starts last.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bdcp::plan {

constexpr int kMostRadixBits = 12;  // of a digit: its counters fit the L1 cache

/// Sorts `items` by descending cost(item) >= 0, stable. Radix sort of the costs: lists have thousands of items,
/// and moving each of them log n times would be most of what a step costs.
template <class T, class Cost>
void sort_costliest_first(std::vector<T>& items, const Cost& cost) {
  const std::size_t count = items.size();
  std::vector<std::uint64_t> costs(count);
  std::uint64_t most = 0, any = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto one = static_cast<std::uint64_t>(cost(items[i]));
    costs[i] = one;
    most = std::max(most, one);
    any |= one;
  }
  if (any == 0) return;
  // Whole tiles give multiples of a power of two, whose low bits tell nothing.
  const int low = std::countr_zero(any), width = std::bit_width(most >> low);
  std::vector<std::uint32_t> order(count), scratch(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<std::uint32_t>(i);
  const int most_bits = std::clamp(static_cast<int>(std::bit_width(count)), 6, kMostRadixBits);
  const int passes = (width + most_bits - 1) / most_bits, bits = (width + passes - 1) / passes;
  for (int shift = low; shift < low + width; shift += bits) {
    const std::uint64_t digits = std::uint64_t{1} << bits;
    const auto digit = [&](std::uint32_t i) { return (costs[i] >> shift) % digits; };
    std::array<std::uint32_t, std::size_t{1} << kMostRadixBits> next;
    std::fill_n(next.begin(), digits, 0);
    for (const std::uint32_t i : order) ++next[digit(i)];
    std::uint32_t sum = 0;
    for (std::uint64_t d = digits; d-- > 0;) sum += std::exchange(next[d], sum);
    for (const std::uint32_t i : order) scratch[next[digit(i)]++] = i;
    order.swap(scratch);
  }
  std::vector<T> sorted;
  sorted.reserve(count);
  for (const std::uint32_t i : order) sorted.push_back(items[i]);
  items.swap(sorted);
}

}  // namespace bdcp::plan
