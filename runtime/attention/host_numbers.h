// Element conversions of the host backend.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "bdcp/types.h"

namespace bdcp::attention {

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline float f16_to_float(std::uint16_t bits) {
  std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  if (magnitude >= 0x7c00u << 13)
    magnitude |= 0x7f800000u;  // Inf and NaN
  else                         // exact, subnormals included
    magnitude = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  return std::bit_cast<float>(magnitude | (static_cast<std::uint32_t>(bits & 0x8000) << 16));
}

/// The float next to `value` toward zero, with its last bit set if inexact: rounding that again to fewer bits
/// is the same as rounding `value` once.
inline float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// Nearest, ties to even; NaN stays NaN, overflow becomes Inf.
inline std::uint16_t bf16_from_double(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(round_to_odd(value));
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline std::uint16_t f16_from_double(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(round_to_odd(value));
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude >= 0x47800000u) {  // 65536 or more, Inf, NaN
    half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds at 2^-24
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// One row of `dim` elements, `stride` doubles apart.
inline void load_row(const void* data, DType dtype, std::int64_t offset, int dim, double* out, int stride = 1) {
  switch (dtype) {
    case DType::f32: {
      const auto* in = static_cast<const float*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c * stride] = in[c];
      break;
    }
    case DType::f16: {
      const auto* in = static_cast<const std::uint16_t*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c * stride] = f16_to_float(in[c]);
      break;
    }
    case DType::bf16: {
      const auto* in = static_cast<const std::uint16_t*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c * stride] = bf16_to_float(in[c]);
      break;
    }
  }
}

/// value * factor, rounded once.
inline void store_row(void* data, DType dtype, std::int64_t offset, int dim, const double* in, double factor) {
  switch (dtype) {
    case DType::f32: {
      auto* out = static_cast<float*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c] = static_cast<float>(in[c] * factor);
      break;
    }
    case DType::f16: {
      auto* out = static_cast<std::uint16_t*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c] = f16_from_double(in[c] * factor);
      break;
    }
    case DType::bf16: {
      auto* out = static_cast<std::uint16_t*>(data) + offset;
      for (int c = 0; c < dim; ++c) out[c] = bf16_from_double(in[c] * factor);
      break;
    }
  }
}

inline void zero_row(void* data, DType dtype, std::int64_t offset, int dim) {
  const std::size_t width = size_of(dtype);
  auto* out = static_cast<unsigned char*>(data) + static_cast<std::size_t>(offset) * width;
  for (std::size_t i = 0; i < static_cast<std::size_t>(dim) * width; ++i) out[i] = 0;
}

}  // namespace bdcp::attention
