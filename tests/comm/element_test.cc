// Conversions of 16-bit floats against an independent statement of them.
#include "comm/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "check/numbers.h"

namespace bdcp {
namespace {

TEST(Element, EveryHalfAndBfloatSurvivesTheRoundTrip) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f16 = comm::from_f16(half), bf16 = comm::from_bf16(half);
    const double checked_f16 = check::load(&half, DType::f16, 0),
                 checked_bf16 = check::load(&half, DType::bf16, 0);
    if (std::isnan(checked_f16)) {
      EXPECT_TRUE(std::isnan(f16)) << bits;
      EXPECT_EQ(comm::to_f16(f16), 0x7fff);
    } else {
      ASSERT_EQ(static_cast<double>(f16), checked_f16) << bits;
      ASSERT_EQ(comm::to_f16(f16), half);
    }
    if (std::isnan(checked_bf16)) {
      EXPECT_TRUE(std::isnan(bf16)) << bits;
      EXPECT_EQ(comm::to_bf16(bf16), 0x7fff);
    } else {
      ASSERT_EQ(static_cast<double>(bf16), checked_bf16) << bits;
      ASSERT_EQ(comm::to_bf16(bf16), half);
    }
  }
}

/// The neighbour of `value` among all 16-bit numbers that is nearest, ties to the even one.
template <class From>
std::uint16_t nearest(float value, std::uint16_t below, From from) {
  // `below` is the magnitude's lower neighbour; comparing in double is exact.
  const double low = static_cast<double>(from(below)), target = std::fabs(static_cast<double>(value));
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double high = static_cast<double>(from(above));
  if (target - low != high - target) return target - low < high - target ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(Element, RoundsToNearestEvenBetweenAnyTwoNeighbours) {
  std::mt19937 random(3);
  for (std::uint16_t below = 0; below < 0x7bff; ++below) {
    const float low = comm::from_f16(below), high = comm::from_f16(static_cast<std::uint16_t>(below + 1));
    const float middle = low + (high - low) / 2;
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e6f)}) {
      ASSERT_EQ(comm::to_f16(value), nearest(value, below, comm::from_f16)) << value;
      ASSERT_EQ(comm::to_f16(-value), nearest(value, below, comm::from_f16) | 0x8000) << value;
    }
  }
  for (int i = 0; i < 100000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random()) & 0x7fffffffu;
    if (bits >= 0x7f7f0000u) continue;  // the last finite bfloat and above have no finite upper neighbour
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(comm::to_bf16(value), nearest(value, static_cast<std::uint16_t>(bits >> 16), comm::from_bf16));
  }
}

TEST(Element, OverflowsToInfinityWhereRoundingDoes) {
  EXPECT_EQ(comm::to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(comm::to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(comm::to_f16(-INFINITY), 0xfc00);
  EXPECT_EQ(comm::to_f16(1e-30f), 0x0000);
  EXPECT_EQ(comm::to_bf16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
}

}  // namespace
}  // namespace bdcp
