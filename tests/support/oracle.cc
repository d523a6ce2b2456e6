#include "support/oracle.h"

#include <random>

namespace bdcp::test {

RaggedLayout from_lengths(std::vector<std::int64_t> q, std::vector<std::int64_t> k, std::int64_t pad_q,
                          std::int64_t pad_k, std::string name) {
  RaggedLayout layout;
  for (std::size_t i = 0; i < q.size(); ++i) {
    layout.cu_q.push_back(layout.cu_q.back() + q[i]);
    layout.cu_k.push_back(layout.cu_k.back() + k[i]);
  }
  layout.pad_q = pad_q;
  layout.pad_k = pad_k;
  layout.name = std::move(name);
  return layout;
}

RaggedLayout from_lengths(const std::vector<std::int64_t>& lengths, std::int64_t pad, std::string name) {
  return from_lengths(lengths, lengths, pad, pad, std::move(name));
}

std::vector<RaggedLayout> tricky_layouts() {
  return {
      from_lengths({7}, 0, "one_document"),
      from_lengths({1}, 0, "one_token"),
      from_lengths({}, 9, "all_padding"),
      from_lengths({1, 1, 1, 1, 1, 1, 1}, 3, "one_token_documents"),
      from_lengths({0, 1, 0, 1}, 0, "empty_documents"),
      from_lengths({0, 0, 0, 1}, 5, "only_the_last_has_rows"),
      from_lengths({137, 349}, 212, "long_tail"),
      from_lengths({31, 33, 32, 1, 63, 65, 64}, 7, "tile_edges"),
      from_lengths({127, 129, 128}, 1, "larger_tile_edges"),
      from_lengths({5, 3, 8, 2, 13, 4, 9, 6}, 2, "short_documents"),
      from_lengths({76, 34, 146}, {1, 1, 1}, 0, 0, "one_key_each"),
      from_lengths({3}, {7}, 0, 0, "q_below_k"),
      from_lengths({70}, {35}, 0, 0, "q_above_k"),
      from_lengths({40, 0, 3, 33, 5}, {40, 6, 90, 0, 70}, 3, 4, "chunked_prefill"),
      from_lengths({2, 2}, {0, 0}, 1, 0, "no_keys_at_all"),
      from_lengths({0, 0}, {4, 2}, 0, 3, "no_queries_at_all"),
      from_lengths({200, 1, 17}, {33, 65, 17}, 0, 1, "mixed_rectangular"),
  };
}

RaggedLayout random_layout(std::uint64_t seed, std::int64_t max_rows) {
  std::mt19937_64 engine(seed * 0x9E3779B97F4A7C15ull + 1);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
  };
  const bool rectangular = pick(0, 2) == 0;
  const std::int64_t typical = std::int64_t{1} << pick(0, 7);
  std::vector<std::int64_t> q, k;
  std::int64_t rows = 0, keys = 0;
  while (true) {
    const std::int64_t a = pick(0, 2 * typical);
    const std::int64_t b = rectangular ? pick(0, 2 * typical) : a;
    if (rows + a > max_rows || keys + b > max_rows || q.size() > 60) break;
    q.push_back(a);
    k.push_back(b);
    rows += a;
    keys += b;
  }
  const std::int64_t pad = pick(0, 1) ? pick(0, 40) : 0;
  return from_lengths(std::move(q), std::move(k), pad, rectangular ? pick(0, 9) : pad,
                      "seed_" + std::to_string(seed));
}

}  // namespace bdcp::test
