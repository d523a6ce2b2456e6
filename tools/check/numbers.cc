#include "check/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace bdcp::check {
namespace {

// A 16-bit format with `mantissa` explicit bits and minimum normal exponent `min_exponent`.
struct Format {
  int mantissa, min_exponent;
  double largest;
};
constexpr Format kF16{10, -14, 65504.0};
constexpr Format kBf16{7, -126, 3.3895313892515355e38};

// Rounds to the format's grid with the default ties-to-even mode of nearbyint.
double to_grid(double value, const Format& format) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.mantissa);
  const double rounded = std::nearbyint(value / ulp) * ulp;
  if (std::fabs(rounded) > format.largest) return std::copysign(std::numeric_limits<double>::infinity(), value);
  return rounded;
}

std::uint16_t encode(double on_grid, DType dtype) {
  const Format& format = dtype == DType::f16 ? kF16 : kBf16;
  const int exponent_bits = dtype == DType::f16 ? 5 : 8;
  const auto sign = static_cast<std::uint16_t>(std::signbit(on_grid) ? 0x8000 : 0);
  const auto inf = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << format.mantissa);
  if (std::isnan(on_grid)) return static_cast<std::uint16_t>(sign | inf | (1 << (format.mantissa - 1)));
  if (std::isinf(on_grid)) return static_cast<std::uint16_t>(sign | inf);
  const double magnitude = std::fabs(on_grid);
  const int exponent = magnitude == 0 ? format.min_exponent - 1 : std::ilogb(magnitude);
  if (exponent < format.min_exponent)
    return static_cast<std::uint16_t>(
        sign | static_cast<int>(std::ldexp(magnitude, format.mantissa - format.min_exponent)));
  const int fraction =
      static_cast<int>(std::ldexp(magnitude, format.mantissa - exponent)) - (1 << format.mantissa);
  return static_cast<std::uint16_t>(sign | ((exponent - format.min_exponent + 1) << format.mantissa) |
                                    fraction);
}

double decode(std::uint16_t bits, DType dtype) {
  const Format& format = dtype == DType::f16 ? kF16 : kBf16;
  const int exponent_bits = dtype == DType::f16 ? 5 : 8;
  const int exponent = (bits >> format.mantissa) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << format.mantissa) - 1);
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, format.min_exponent - format.mantissa);
  return sign *
         std::ldexp(fraction + (1 << format.mantissa), exponent - 1 + format.min_exponent - format.mantissa);
}

std::vector<double> decode_all(DType dtype) {
  std::vector<double> table(1 << 16);
  for (std::size_t bits = 0; bits < table.size(); ++bits)
    table[bits] = decode(static_cast<std::uint16_t>(bits), dtype);
  return table;
}

}  // namespace

double load(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  static const std::vector<double> f16 = decode_all(DType::f16), bf16 = decode_all(DType::bf16);
  return (dtype == DType::f16 ? f16 : bf16)[static_cast<const std::uint16_t*>(data)[index]];
}

void store(void* data, DType dtype, std::int64_t index, double value) {
  if (dtype == DType::f32)
    static_cast<float*>(data)[index] = static_cast<float>(value);
  else
    static_cast<std::uint16_t*>(data)[index] = encode(round_to(dtype, value), dtype);
}

double round_to(DType dtype, double value) {
  if (dtype == DType::f32) return static_cast<float>(value);
  return to_grid(value, dtype == DType::f16 ? kF16 : kBf16);
}

std::vector<double> to_doubles(ConstTensorView view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.tokens * view.heads * view.dim));
  for (std::int64_t t = 0; t < view.tokens; ++t)
    for (std::int64_t h = 0; h < view.heads; ++h)
      for (std::int64_t d = 0; d < view.dim; ++d)
        values.push_back(load(view.data, view.dtype, t * view.token_stride + h * view.head_stride + d));
  return values;
}

std::vector<double> to_doubles(ConstLseView view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.heads * view.tokens));
  for (std::int64_t h = 0; h < view.heads; ++h)
    for (std::int64_t t = 0; t < view.tokens; ++t) values.push_back(view.data[h * view.head_stride + t]);
  return values;
}

Errors compare(std::span<const double> actual, std::span<const double> expected) {
  const double inf = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return {inf, inf, 0};
  Errors errors;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (!std::isfinite(a) || !std::isfinite(e)) {
      if ((std::isnan(a) && std::isnan(e)) || a == e) continue;
      return {inf, inf, 0};
    }
    errors.max = std::max(errors.max, std::fabs(a - e));
    errors.largest = std::max(errors.largest, std::fabs(e));
    difference += (a - e) * (a - e);
    norm += e * e;
  }
  if (!actual.empty())
    errors.rel_l2 =
        std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3 * std::sqrt(static_cast<double>(actual.size())));
  return errors;
}

double limit(Quantity quantity, DType dtype) {
  switch (quantity) {
    case Quantity::lse:
      return 1e-3;
    case Quantity::out:
      return dtype == DType::bf16 ? 4e-3 : dtype == DType::f16 ? 6e-4 : 1e-5;
    case Quantity::gradient:
      return dtype == DType::bf16 ? 1e-2 : dtype == DType::f16 ? 1.5e-3 : 5e-5;
  }
  return 0;
}

std::string why_not(Quantity quantity, DType dtype, Errors errors, double rounded_max) {
  const double allowed = limit(quantity, dtype);
  if (quantity == Quantity::lse)
    return errors.max <= allowed ? std::string()
                                 : fmt::format("LSE error {:.3g}, allowed {:.3g}", errors.max, allowed);
  if (!(errors.rel_l2 <= allowed))
    return fmt::format("relative L2 error {:.3g}, allowed {:.3g} for {}", errors.rel_l2, allowed,
                       to_string(dtype));
  if (rounded_max < 0) return {};
  const double half_ulp = std::ldexp(errors.largest, dtype == DType::bf16  ? -8
                                                     : dtype == DType::f16 ? -11
                                                                           : -24);
  const double allowed_max = 2 * std::max(rounded_max, half_ulp);
  if (!(errors.max <= allowed_max))
    return fmt::format("largest error {:.3g}, allowed {:.3g} (twice that of a run rounded to {})", errors.max,
                       allowed_max, to_string(dtype));
  return {};
}

RowError compare_rows(Quantity quantity, DType dtype, std::span<const double> actual,
                      std::span<const double> expected, std::int64_t width, std::span<const double> rounded) {
  constexpr std::size_t kAround = 8;
  constexpr double kRoundings = 6;
  RowError worst;
  if (width < 1 || actual.size() != expected.size()) return worst;
  const auto step = static_cast<std::size_t>(width);
  const std::size_t rows = expected.size() / step;
  const auto distances = [&](std::span<const double> values) {  // from `expected`; of nothing: its size
    std::vector<double> out(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (std::size_t i = row * step; i < (row + 1) * step; ++i) {
        const double difference = (values.empty() ? 0 : values[i]) - expected[i];
        sum += difference * difference;
      }
      out[row] = std::sqrt(sum);
    }
    return out;
  };
  const std::vector<double> errors = distances(actual), sizes = distances({});
  const bool has_rounded = quantity != Quantity::lse && rounded.size() == expected.size();
  const std::vector<double> rounding = has_rounded ? distances(rounded) : std::vector<double>(rows);
  // The largest of the rows around; those that are not finite do not count.
  const auto around = [&](const std::vector<double>& values, std::size_t row) {
    double most = 0;
    for (std::size_t i = row - std::min(row, kAround); i < std::min(rows, row + kAround + 1); ++i)
      if (std::isfinite(values[i])) most = std::max(most, values[i]);
    return most;
  };
  const double relative = quantity == Quantity::lse ? 5e-5 : 2 * limit(quantity, dtype);
  const double floor = quantity == Quantity::lse ? 1 : 1e-3 * std::sqrt(static_cast<double>(width));
  for (std::size_t row = 0; row < rows; ++row) {
    if (!std::isfinite(errors[row]) || !std::isfinite(sizes[row])) continue;
    double size = std::max(sizes[row], floor);
    if (!has_rounded && quantity != Quantity::lse) size = std::max(size, around(sizes, row));
    double allowed = relative * size;
    if (has_rounded) allowed += kRoundings * around(rounding, row);
    if (errors[row] / allowed > worst.share) worst = {errors[row] / allowed, static_cast<std::int64_t>(row)};
  }
  return worst;
}

}  // namespace bdcp::check
