#include "bench/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/parallel.h"
#include "check/numbers.h"

namespace bdcp::bench {
namespace {

constexpr std::size_t kQuantiles = 65536, kBlock = 1 << 16;

/// Values that a standard normal exceeds with probability 1 - (i + 0.5) / kQuantiles. A table instead of a
/// transform per value, because the large packs have half a billion of them.
std::vector<double> normal_quantiles() {
  std::vector<double> table(kQuantiles);
  double x = -4.5;
  for (std::size_t i = 0; i < kQuantiles / 2; ++i) {
    const double p = (static_cast<double>(i) + 0.5) / kQuantiles;
    for (int step = 0; step < 20; ++step) {
      const double excess = 0.5 * std::erfc(-x / std::numbers::sqrt2) - p;
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
      const double change = excess / density;
      x -= std::clamp(change, -0.5, 0.5);
      if (std::abs(change) < 1e-12) break;
    }
    table[i] = x;
    table[kQuantiles - 1 - i] = -x;
  }
  return table;
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

template <class Element>
void fill_normal(std::vector<std::byte>& bytes, const std::vector<std::byte>& table, std::uint64_t seed) {
  const std::size_t count = bytes.size() / sizeof(Element);
  Element* const out = reinterpret_cast<Element*>(bytes.data());
  const Element* const values = reinterpret_cast<const Element*>(table.data());
  parallel_for(static_cast<std::int64_t>((count + kBlock - 1) / kBlock), [&](std::int64_t block) {
    const std::size_t begin = static_cast<std::size_t>(block) * kBlock, end = std::min(begin + kBlock, count);
    std::uint64_t bits = 0;
    for (std::size_t i = begin; i < end; ++i, bits >>= 16) {
      if (i % 4 == 0) bits = mix(seed ^ mix(i / 4));
      out[i] = values[bits & 0xFFFF];
    }
  });
}

void poison_rows(std::vector<std::byte>& bytes, DType dtype, std::int64_t width, std::int64_t begin,
                 std::int64_t end) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr std::array<double, 3> kValues{std::numeric_limits<double>::quiet_NaN(), kInf, -kInf};
  for (std::int64_t i = begin * width; i < end * width; ++i) {
    check::store(bytes.data(), dtype, i, kValues[static_cast<std::size_t>(i % 3)]);
  }
}

std::vector<std::byte> widen(const std::vector<std::byte>& bytes, DType dtype) {
  const std::size_t count = bytes.size() / size_of(dtype);
  std::vector<std::byte> wide(count * sizeof(float));
  float* const out = reinterpret_cast<float*>(wide.data());
  parallel_for(static_cast<std::int64_t>((count + kBlock - 1) / kBlock), [&](std::int64_t block) {
    const std::size_t begin = static_cast<std::size_t>(block) * kBlock, end = std::min(begin + kBlock, count);
    for (std::size_t i = begin; i < end; ++i) {
      out[i] = static_cast<float>(check::load(bytes.data(), dtype, static_cast<std::int64_t>(i)));
    }
  });
  return wide;
}

}  // namespace

Inputs random_inputs(const check::Problem& p, DType dtype, std::uint64_t seed) {
  const std::vector<double> quantiles = normal_quantiles();
  std::vector<std::byte> table(kQuantiles * size_of(dtype));
  for (std::size_t i = 0; i < kQuantiles; ++i) {
    check::store(table.data(), dtype, static_cast<std::int64_t>(i), quantiles[i]);
  }
  Inputs inputs;
  const auto fill = [&](std::vector<std::byte>& bytes, std::int64_t rows, int heads, int dim,
                        std::uint64_t salt) {
    bytes.resize(static_cast<std::size_t>(rows * heads * dim) * size_of(dtype));
    const std::uint64_t own = mix(seed + salt);
    if (size_of(dtype) == 2) {
      fill_normal<std::uint16_t>(bytes, table, own);
    } else {
      fill_normal<std::uint32_t>(bytes, table, own);
    }
  };
  fill(inputs.q, p.rows, p.heads_q, p.head_dim, 1);
  fill(inputs.k, p.key_rows, p.heads_kv, p.head_dim, 2);
  fill(inputs.v, p.key_rows, p.heads_kv, p.head_dim_v, 3);
  fill(inputs.dout, p.rows, p.heads_q, p.head_dim_v, 4);
  return inputs;
}

namespace {

/// Rows of q and dout, and of k and v.
void poison_range(Inputs& inputs, const check::Problem& p, DType dtype, std::int64_t q_begin,
                  std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end) {
  poison_rows(inputs.q, dtype, std::int64_t{p.heads_q} * p.head_dim, q_begin, q_end);
  poison_rows(inputs.dout, dtype, std::int64_t{p.heads_q} * p.head_dim_v, q_begin, q_end);
  poison_rows(inputs.k, dtype, std::int64_t{p.heads_kv} * p.head_dim, k_begin, k_end);
  poison_rows(inputs.v, dtype, std::int64_t{p.heads_kv} * p.head_dim_v, k_begin, k_end);
}

}  // namespace

void poison_padding(Inputs& inputs, const check::Problem& p, DType dtype) {
  poison_range(inputs, p, dtype, p.cu_q.back(), p.rows, p.cu_k.back(), p.key_rows);
}

void poison(Inputs& inputs, const check::Problem& p, DType dtype, std::int64_t document) {
  const std::size_t i = static_cast<std::size_t>(document);
  poison_range(inputs, p, dtype, p.cu_q[i], p.cu_q[i + 1], p.cu_k[i], p.cu_k[i + 1]);
  poison_padding(inputs, p, dtype);
}

Inputs to_f32(const Inputs& inputs, DType dtype) {
  return {widen(inputs.q, dtype), widen(inputs.k, dtype), widen(inputs.v, dtype), widen(inputs.dout, dtype)};
}

check::Inputs views(const Inputs& inputs, const check::Problem& p, DType dtype) {
  return {ConstTensorView::packed(inputs.q.data(), dtype, p.rows, p.heads_q, p.head_dim),
          ConstTensorView::packed(inputs.k.data(), dtype, p.key_rows, p.heads_kv, p.head_dim),
          ConstTensorView::packed(inputs.v.data(), dtype, p.key_rows, p.heads_kv, p.head_dim_v),
          ConstTensorView::packed(inputs.dout.data(), dtype, p.rows, p.heads_q, p.head_dim_v)};
}

}  // namespace bdcp::bench
