#include "attention/host_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "check/numbers.h"

namespace bdcp::attention {
namespace {

TEST(HostNumbers, EverySixteenBitValueSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double f16 = f16_to_float(half), bf16 = bf16_to_float(half);
    const double expected = check::load(&half, DType::f16, 0),
                 expected_bf16 = check::load(&half, DType::bf16, 0);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(f16));
      EXPECT_TRUE(std::isnan(check::load(&half, DType::f16, 0)));
      const std::uint16_t back = f16_from_double(f16);
      EXPECT_TRUE(std::isnan(check::load(&back, DType::f16, 0)));
    } else {
      ASSERT_EQ(f16, expected);
      ASSERT_EQ(f16_from_double(f16), half);
    }
    if (std::isnan(expected_bf16)) {
      const std::uint16_t back = bf16_from_double(bf16);
      EXPECT_TRUE(std::isnan(bf16) && std::isnan(check::load(&back, DType::bf16, 0)));
    } else {
      ASSERT_EQ(bf16, expected_bf16);
      ASSERT_EQ(bf16_from_double(bf16), half);
    }
  }
}

TEST(HostNumbers, RoundsOnceToNearestEven) {
  std::mt19937_64 engine(5);
  for (int i = 0; i < 300000; ++i) {
    const auto half = static_cast<std::uint16_t>(engine());
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const double at = check::load(&half, dtype, 0);
      if (!std::isfinite(at)) continue;
      // Near the value, and near the middle between it and its neighbour, where double rounding would go wrong.
      const auto next_bits = static_cast<std::uint16_t>(half + 1);
      const double next = check::load(&next_bits, dtype, 0);
      const double middle = std::isfinite(next) ? at + (next - at) / 2 : at;
      for (const double value :
           {at, middle, std::nextafter(middle, 0.0), std::nextafter(middle, middle * 2 + 1)}) {
        std::uint16_t expected;
        check::store(&expected, dtype, 0, value);
        const std::uint16_t actual = dtype == DType::f16 ? f16_from_double(value) : bf16_from_double(value);
        ASSERT_EQ(actual, expected) << to_string(dtype) << " " << value;
      }
    }
  }
}

TEST(HostNumbers, OverflowBecomesInfinity) {
  EXPECT_EQ(f16_from_double(65519.99), 0x7bff);
  EXPECT_EQ(f16_from_double(65520.0), 0x7c00);
  EXPECT_EQ(f16_from_double(-1e300), 0xfc00);
  EXPECT_EQ(bf16_from_double(1e300), 0x7f80);
  EXPECT_EQ(f16_from_double(std::ldexp(1.0, -25)), 0);  // tie to even
  EXPECT_EQ(f16_from_double(std::ldexp(1.0001, -25)), 1);
}

}  // namespace
}  // namespace bdcp::attention
