// Owning host tensors for tests: any dtype, packed or padded strides, seeded random fill, poison.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "bdcp/types.h"
#include "check/numbers.h"

namespace bdcp::test {

/// [tokens, heads, dim] in one of four memory orders.
class HostTensor {
 public:
  enum class Order {
    packed,       ///< [tokens, heads, dim]
    padded,       ///< packed, with unused elements after every head and token, and an odd offset in front
    heads_first,  ///< [heads, tokens, dim]
    spaced        ///< packed, with unused elements after every head and token; rows stay on 16 bytes
  };

  HostTensor() = default;
  HostTensor(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim,
             Order order = Order::packed)
      : dtype_(dtype), tokens_(tokens), heads_(heads), dim_(dim) {
    token_stride_ = heads * dim;
    head_stride_ = dim;
    if (order == Order::padded) {
      offset_ = 1;
      head_stride_ = dim + 3;
      token_stride_ = heads * head_stride_ + 5;
    } else if (order == Order::heads_first) {
      token_stride_ = dim;
      head_stride_ = tokens * dim;
    } else if (order == Order::spaced) {
      head_stride_ = dim + 8;
      token_stride_ = heads * head_stride_ + 16;
    }
    const std::int64_t last =
        (tokens > 0 && heads > 0) ? (tokens - 1) * token_stride_ + (heads - 1) * head_stride_ + dim : 0;
    bytes_.assign(static_cast<std::size_t>(offset_ + last + 1) * size_of(dtype), 0xCD);
  }

  TensorView view() { return {data(), dtype_, tokens_, heads_, dim_, token_stride_, head_stride_}; }
  ConstTensorView view() const { return const_cast<HostTensor*>(this)->view(); }
  /// Tokens [begin, end).
  TensorView rows(std::int64_t begin, std::int64_t end) {
    TensorView part = view();
    part.data = static_cast<unsigned char*>(part.data) +
                static_cast<std::size_t>(begin * token_stride_) * size_of(dtype_);
    part.tokens = end - begin;
    return part;
  }
  ConstTensorView rows(std::int64_t begin, std::int64_t end) const {
    return const_cast<HostTensor*>(this)->rows(begin, end);
  }

  double at(std::int64_t token, std::int64_t head, std::int64_t d) const {
    return check::load(bytes_.data(), dtype_, index(token, head, d));
  }
  void set(std::int64_t token, std::int64_t head, std::int64_t d, double value) {
    check::store(bytes_.data(), dtype_, index(token, head, d), value);
  }

  /// Standard normal times `sigma`, a function of the seed and the position only.
  HostTensor& randomize(std::uint64_t seed, double sigma = 1.0) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(0.0, sigma);
    for (std::int64_t t = 0; t < tokens_; ++t)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t d = 0; d < dim_; ++d) set(t, h, d, normal(engine));
    return *this;
  }
  HostTensor& fill(std::int64_t begin, std::int64_t end, double value) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t d = 0; d < dim_; ++d) set(t, h, d, value);
    return *this;
  }
  HostTensor& fill(double value) { return fill(0, tokens_, value); }
  /// Tokens [begin, end) become a mix of NaN, +Inf and -Inf.
  HostTensor& poison(std::int64_t begin, std::int64_t end) {
    const double inf = std::numeric_limits<double>::infinity();
    const double values[3] = {std::numeric_limits<double>::quiet_NaN(), inf, -inf};
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads_; ++h)
        for (std::int64_t d = 0; d < dim_; ++d) set(t, h, d, values[(t + h + d) % 3]);
    return *this;
  }

  std::vector<double> values() const { return check::to_doubles(view()); }
  /// Bitwise equality of tokens [begin, end) (elements only, not the gaps between them).
  bool same_bits(const HostTensor& other, std::int64_t begin, std::int64_t end) const {
    const std::size_t width = static_cast<std::size_t>(dim_) * size_of(dtype_);
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t h = 0; h < heads_; ++h)
        if (std::memcmp(bytes_.data() + static_cast<std::size_t>(index(t, h, 0)) * size_of(dtype_),
                        other.bytes_.data() + static_cast<std::size_t>(other.index(t, h, 0)) * size_of(dtype_),
                        width) != 0)
          return false;
    return true;
  }
  bool same_bits(const HostTensor& other) const { return same_bits(other, 0, tokens_); }

  /// Every byte of memory, gaps included.
  HostTensor& fill_bytes(unsigned char value) {
    std::fill(bytes_.begin(), bytes_.end(), value);
    return *this;
  }
  /// Whether every byte that belongs to no element is `value`.
  bool gaps_are(unsigned char value) const {
    HostTensor copy = *this;
    const std::size_t width = static_cast<std::size_t>(dim_) * size_of(dtype_);
    for (std::int64_t t = 0; t < tokens_; ++t)
      for (std::int64_t h = 0; h < heads_; ++h)
        std::memset(copy.bytes_.data() + static_cast<std::size_t>(index(t, h, 0)) * size_of(dtype_), value,
                    width);
    return std::all_of(copy.bytes_.begin(), copy.bytes_.end(), [&](unsigned char b) { return b == value; });
  }

  void* data() { return bytes_.data() + static_cast<std::size_t>(offset_) * size_of(dtype_); }
  /// All memory, gaps included; the view starts at data().
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  std::vector<unsigned char>& bytes() { return bytes_; }
  DType dtype() const { return dtype_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t dim() const { return dim_; }

 private:
  std::int64_t index(std::int64_t token, std::int64_t head, std::int64_t d) const {
    return offset_ + token * token_stride_ + head * head_stride_ + d;
  }
  DType dtype_ = DType::f32;
  std::int64_t tokens_ = 0, heads_ = 0, dim_ = 0, token_stride_ = 0, head_stride_ = 0, offset_ = 0;
  std::vector<unsigned char> bytes_;
};

/// fp32 [heads, tokens].
struct HostLse {
  std::int64_t heads = 0, tokens = 0;
  std::vector<float> data;
  HostLse() = default;
  HostLse(std::int64_t heads_, std::int64_t tokens_)
      : heads(heads_), tokens(tokens_), data(static_cast<std::size_t>(heads_ * tokens_), 12345.0f) {}
  LseView view() { return LseView::packed(data.data(), heads, tokens); }
  ConstLseView view() const { return ConstLseView{data.data(), heads, tokens, tokens}; }
  std::vector<double> values() const { return {data.begin(), data.end()}; }
};

}  // namespace bdcp::test
