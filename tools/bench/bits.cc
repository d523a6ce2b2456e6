// The comparisons of check.h that look at bits and zeros, not at distances.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench/check.h"
#include "check/numbers.h"

namespace bdcp::bench {
namespace {

/// Rows of one tensor as bytes; LSE is stored [head][row], the others [row][...].
struct Rows {
  const std::byte* data = nullptr;
  std::size_t width = 0;  ///< bytes of one row (LSE: of one head's value)
  std::int64_t rows = 0;
  int planes = 1;  ///< LSE: heads
  const std::vector<std::int64_t>* cu = nullptr;
  bool is_lse = false;
  DType dtype = DType::f32;

  const std::byte* at(int plane, std::int64_t row) const {
    return data + static_cast<std::size_t>(plane * rows + row) * width;
  }
  template <class Predicate>
  bool all(std::int64_t row, Predicate predicate) const {
    for (int plane = 0; plane < planes; ++plane) {
      for (std::size_t i = 0; i < width / size_of(dtype); ++i) {
        if (!predicate(check::load(at(plane, row), dtype, static_cast<std::int64_t>(i)))) return false;
      }
    }
    return true;
  }
};

std::vector<Rows> tensors(const check::Problem& p, DType dtype, const Outputs& o, Tensors which, bool with_dq) {
  const auto packed = [&](const std::vector<std::byte>& bytes, std::int64_t rows, int heads, int dim,
                          const std::vector<std::int64_t>& cu) {
    return Rows{bytes.data(), static_cast<std::size_t>(heads * dim) * size_of(dtype), rows, 1, &cu, false,
                dtype};
  };
  std::vector<Rows> list;
  if (which.forward) {
    list.push_back(packed(o.out, p.rows, p.heads_q, p.head_dim_v, p.cu_q));
    list.push_back({reinterpret_cast<const std::byte*>(o.lse.data()), sizeof(float), p.rows, p.heads_q, &p.cu_q,
                    true, DType::f32});
  }
  if (which.gradients) {
    list.push_back(packed(o.dk, p.key_rows, p.heads_kv, p.head_dim, p.cu_k));
    list.push_back(packed(o.dv, p.key_rows, p.heads_kv, p.head_dim_v, p.cu_k));
    if (with_dq) list.push_back(packed(o.dq, p.rows, p.heads_q, p.head_dim, p.cu_q));
  }
  return list;
}

bool same_row(const Rows& a, const Rows& b, std::int64_t row) {
  for (int plane = 0; plane < a.planes; ++plane) {
    if (std::memcmp(a.at(plane, row), b.at(plane, row), a.width) != 0) return false;
  }
  return true;
}

/// Rows of the poisoned document that see, or are seen by, something poisoned: all with a key, or with a query.
std::pair<std::int64_t, std::int64_t> touched(const check::Problem& p, const Rows& tensor,
                                              std::size_t document) {
  const std::int64_t q = p.cu_q[document + 1] - p.cu_q[document], k = p.cu_k[document + 1] - p.cu_k[document];
  const std::int64_t end = (*tensor.cu)[document + 1];
  if (q == 0 || k == 0) return {end, end};
  return {end - (tensor.cu == &p.cu_q ? std::min(q, k) : k), end};
}

}  // namespace

bool padding_is_zero(const check::Problem& p, DType dtype, const Outputs& outputs, Tensors which) {
  for (const Rows& tensor : tensors(p, dtype, outputs, which, true)) {
    const double expected = tensor.is_lse ? -std::numeric_limits<double>::infinity() : 0.0;
    for (std::int64_t row = tensor.cu->back(); row < tensor.rows; ++row) {
      if (!tensor.all(row, [&](double value) { return value == expected; })) return false;
    }
  }
  return true;
}

bool same_bits(const Outputs& a, const Outputs& b, Tensors which, bool with_dq) {
  const bool lse_same =
      a.lse.size() == b.lse.size() &&
      (a.lse.empty() || std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0);
  if (which.forward && !(a.out == b.out && lse_same)) return false;
  if (which.gradients && !(a.dk == b.dk && a.dv == b.dv && (!with_dq || a.dq == b.dq))) return false;
  return true;
}

PoisonResult compare_poisoned(const check::Problem& p, DType dtype, std::int64_t document, const Outputs& clean,
                              const Outputs& poisoned, Tensors which, bool with_dq) {
  PoisonResult result;
  result.document = document;
  result.padding_zero = padding_is_zero(p, dtype, poisoned, which);
  result.dq_compared_bitwise = with_dq || !which.gradients;
  const std::size_t index = static_cast<std::size_t>(document);
  const std::vector<Rows> before = tensors(p, dtype, clean, which, true);
  const std::vector<Rows> after = tensors(p, dtype, poisoned, which, true);
  for (std::size_t t = 0; t < after.size(); ++t) {
    const Rows& tensor = after[t];
    // tensors() puts dQ last; where its sums run in any order only a value that is no number shows a leak.
    const bool by_value = which.gradients && !with_dq && t + 1 == after.size();
    const std::int64_t begin = (*tensor.cu)[index], end = (*tensor.cu)[index + 1];
    for (std::int64_t row = 0; row < tensor.cu->back(); ++row) {
      if (row >= begin && row < end) continue;
      const bool same = by_value ? tensor.all(row, [](double value) { return std::isfinite(value); })
                                 : same_row(before[t], tensor, row);
      result.rows_changed += same ? 0 : 1;
    }
    const auto [from, to] = touched(p, tensor, index);
    for (std::int64_t row = from; row < to; ++row) {
      if (!tensor.all(row, [](double value) { return std::isnan(value); })) result.document_keeps_nan = false;
    }
  }
  return result;
}

}  // namespace bdcp::bench
