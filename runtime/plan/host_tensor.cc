// Padding and slicing one host tensor.
#include "plan/host_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "bdcp/batch.h"

namespace bdcp {
namespace {

/// fp32 to a 16-bit float of the given exponent and mantissa widths, rounding to nearest even.
std::uint16_t narrow(float value, int exponent, int mantissa) {
  const auto sign = static_cast<std::uint32_t>(std::signbit(value)) << 15;
  const std::uint32_t infinity = ((1u << exponent) - 1) << mantissa;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1u << (mantissa - 1)));
  if (value == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int bias = (1 << (exponent - 1)) - 1;
  int binade = 0;
  std::frexp(std::fabs(value), &binade);             // value < 2^binade
  const int power = std::max(binade - 1, 1 - bias);  // subnormals share the smallest normal binade
  const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(value)), mantissa - power));
  if (power > bias) return static_cast<std::uint16_t>(sign | infinity);
  // `units` holds the hidden bit of a normal value, so the sum puts it, and a carry of the rounding, into the
  // exponent field.
  const std::uint32_t magnitude =
      (static_cast<std::uint32_t>(power + bias - 1) << mantissa) + static_cast<std::uint32_t>(units);
  return static_cast<std::uint16_t>(sign | std::min(magnitude, infinity));
}

template <class Value>
void put(std::byte (&out)[8], Value value) {
  std::memcpy(out, &value, sizeof(value));
}

void require_integral(double fill, double low, double high, const char* type) {
  require(fill >= low && fill <= high && fill == std::floor(fill), ErrorCode::invalid_argument, [&] {
    return fmt::format("fill is {} for {} elements; allowed: whole numbers from {} to {}", fill, type, low,
                       high);
  });
}

/// The bytes of one element that holds `fill`.
void encode(ElementType type, double fill, std::byte (&out)[8]) {
  switch (type) {
    case ElementType::i32:
      require_integral(fill, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(),
                       "i32");
      return put(out, static_cast<std::int32_t>(fill));
    case ElementType::i64:
      // Whole numbers beyond 2^53 are not exact in a double.
      require_integral(fill, -9007199254740992.0, 9007199254740992.0, "i64");
      return put(out, static_cast<std::int64_t>(fill));
    case ElementType::boolean:
      require_integral(fill, 0, 1, "boolean");
      return put(out, static_cast<std::uint8_t>(fill));
    case ElementType::f32:
      return put(out, static_cast<float>(fill));
    case ElementType::f16:
      return put(out, narrow(static_cast<float>(fill), 5, 10));
    case ElementType::bf16:
      return put(out, narrow(static_cast<float>(fill), 8, 7));
  }
}

}  // namespace

std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::i32:
    case ElementType::f32:
      return 4;
    case ElementType::i64:
      return 8;
    case ElementType::boolean:
      return 1;
    case ElementType::f16:
    case ElementType::bf16:
      return 2;
  }
  return 0;
}

std::int64_t HostTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

namespace plan {

void validate(const HostTensor& tensor, const std::string& name) {
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    require(tensor.shape[i] >= 0, ErrorCode::invalid_argument,
            [&] { return fmt::format("{}: shape[{}] is {}; allowed: 0 or more", name, i, tensor.shape[i]); });
  }
  // An element count that overflows cannot match any data.
  std::int64_t most = std::numeric_limits<std::int64_t>::max() / 8;
  const bool empty = std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0;
  for (const std::int64_t extent : tensor.shape) most = empty ? most : most / extent;
  require(most > 0, ErrorCode::invalid_argument,
          [&] { return fmt::format("{}: shape has more than 2^60 elements", name); });
  const std::size_t bytes = static_cast<std::size_t>(tensor.elements()) * size_of(tensor.type);
  require(tensor.data.size() == bytes, ErrorCode::invalid_argument, [&] {
    return fmt::format("{}: data has {} bytes; its shape and type need {}", name, tensor.data.size(), bytes);
  });
}

void validate_shard(const HostTensor& tensor, const std::string& name, int dimension, double fill) {
  validate(tensor, name);
  require(dimension >= 0 && static_cast<std::size_t>(dimension) < tensor.shape.size(),
          ErrorCode::invalid_argument, [&] {
            return fmt::format("{}: dimension is {}; allowed: 0 to {}", name, dimension,
                               static_cast<int>(tensor.shape.size()) - 1);
          });
  std::byte element[8];
  encode(tensor.type, fill, element);
}

HostTensor slice_rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end) {
  HostTensor out{tensor.type, tensor.shape, {}};
  const std::size_t row =
      tensor.shape[0] == 0 ? 0 : tensor.data.size() / static_cast<std::size_t>(tensor.shape[0]);
  out.shape[0] = end - begin;
  out.data.assign(tensor.data.begin() + static_cast<std::ptrdiff_t>(begin * row),
                  tensor.data.begin() + static_cast<std::ptrdiff_t>(end * row));
  return out;
}

}  // namespace plan

PaddedLength padded_length(std::int64_t tokens, int world_size) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  require(tokens >= 0 && tokens <= most, ErrorCode::invalid_argument,
          [&] { return fmt::format("tokens is {}; allowed: 0 to {}", tokens, most); });
  require(world_size >= 1, ErrorCode::invalid_argument,
          [&] { return fmt::format("world_size is {}; allowed: 1 or more", world_size); });
  const std::int64_t unit = world_size == 1 ? 1 : 2 * std::int64_t{world_size};
  const std::int64_t padded = (tokens + unit - 1) / unit * unit;
  return {tokens, padded, padded / world_size};
}

HostTensor shard_rows(const HostTensor& tensor, int dimension, double fill, int world_size, int rank) {
  plan::validate_shard(tensor, "tensor", dimension, fill);
  const PaddedLength length = padded_length(tensor.shape[dimension], world_size);
  require(rank >= 0 && rank < world_size, ErrorCode::invalid_argument,
          [&] { return fmt::format("rank is {}; allowed: 0 to {}", rank, world_size - 1); });
  std::size_t outer = 1, inner = size_of(tensor.type);
  for (int i = 0; i < dimension; ++i) outer *= static_cast<std::size_t>(tensor.shape[i]);
  for (std::size_t i = dimension + 1; i < tensor.shape.size(); ++i)
    inner *= static_cast<std::size_t>(tensor.shape[i]);

  HostTensor out{tensor.type, tensor.shape, {}};
  out.shape[dimension] = length.local;
  const std::int64_t begin = std::min(rank * length.local, length.original);
  const std::size_t real =
      static_cast<std::size_t>(std::min(begin + length.local, length.original) - begin) * inner;
  const std::size_t local = static_cast<std::size_t>(length.local) * inner;
  const std::size_t element = size_of(tensor.type);
  std::byte filler[8];
  encode(tensor.type, fill, filler);
  out.data.resize(outer * local);
  for (std::size_t i = 0; i < outer; ++i) {
    std::byte* to = out.data.data() + i * local;
    const std::size_t from =
        (i * static_cast<std::size_t>(length.original) + static_cast<std::size_t>(begin)) * inner;
    if (real > 0) std::memcpy(to, tensor.data.data() + from, real);
    for (std::size_t at = real; at < local; at += element) std::memcpy(to + at, filler, element);
  }
  return out;
}

}  // namespace bdcp
