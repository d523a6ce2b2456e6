// Random layouts and problems for tests; the oracle itself is check/oracle.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check/oracle.h"

namespace bdcp::test {

/// Documents with any query and key lengths, zero included, and padding after them.
struct RaggedLayout {
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  std::int64_t pad_q = 0, pad_k = 0;
  std::string name;
  bool square() const { return cu_q == cu_k && pad_q == pad_k; }
  std::int64_t rows() const { return cu_q.back() + pad_q; }
  std::int64_t key_rows() const { return cu_k.back() + pad_k; }
};
RaggedLayout from_lengths(std::vector<std::int64_t> q, std::vector<std::int64_t> k, std::int64_t pad_q,
                          std::int64_t pad_k, std::string name = {});
RaggedLayout from_lengths(const std::vector<std::int64_t>& lengths, std::int64_t pad = 0,
                          std::string name = {});

/// The layouts every kernel must pass: public bug cases, zero lengths, one token, q > k, q < k, document edges
/// on tile edges +-1. At most about 600 rows each.
std::vector<RaggedLayout> tricky_layouts();

/// A random one; square or rectangular, a function of the seed.
RaggedLayout random_layout(std::uint64_t seed, std::int64_t max_rows = 400);

}  // namespace bdcp::test
