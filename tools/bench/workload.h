// What is measured: the documents of one case, named, and the work attention on them is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bdcp/doc_layout.h"
#include "bdcp/types.h"

namespace bdcp::bench {

struct Workload {
  std::string name;  ///< pack name, "lengths", "cu_seqlens" or "random/<number>"
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  bool square = true;
  std::int64_t padding = 0;  ///< trailing padding tokens

  static Workload from_lengths(std::string name, const std::vector<std::int64_t>& lengths,
                               std::int64_t padding);

  std::int64_t documents() const { return static_cast<std::int64_t>(cu_q.size()) - 1; }
  std::int64_t tokens() const { return cu_q.back(); }
  /// Visible (row, column) pairs.
  double area() const;
  DocLayout layout(int world) const;
};

/// Layout number `index` of a reproducible series that goes through the kinds that break kernels: mixed, tiny,
/// one token each, one long, tile edges, zero lengths (also first and last), few large and, at world 1,
/// rectangular with few large documents or with many small ones (q above, below and equal to k, either zero).
Workload random_workload(std::uint64_t seed, int index, int world, std::int64_t max_tokens);

/// Floating point operations of one call: multiplications and additions of the matrix products of the visible
/// pairs.
double flops(const Workload& workload, const CallShape& shape, Direction direction);

}  // namespace bdcp::bench
