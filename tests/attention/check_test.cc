// The measuring instruments themselves: tools/check.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/harness.h"
#include "attention/philox.h"

namespace bdcp::test {
namespace {

TEST(Check, MetricHasAFloorUnderItsDenominator) {
  const std::vector<double> zeros(100, 0.0), small(100, 1e-6);
  EXPECT_DOUBLE_EQ(check::compare(small, zeros).rel_l2, 1e-3);
  const std::vector<double> ones(100, 1.0), off(100, 1.001);
  EXPECT_NEAR(check::compare(off, ones).rel_l2, 1e-3, 1e-12);
  EXPECT_NEAR(check::compare(off, ones).max, 1e-3, 1e-12);
  EXPECT_EQ(check::compare({}, {}).rel_l2, 0);
}

TEST(Check, NonFiniteDifferencesFail) {
  const double inf = INFINITY, nan = NAN;
  using V = std::vector<double>;
  EXPECT_EQ(check::compare(V{nan, -inf, 1}, V{nan, -inf, 1}).rel_l2, 0);
  EXPECT_EQ(check::compare(V{nan}, V{1.0}).max, inf);
  EXPECT_EQ(check::compare(V{1.0}, V{nan}).max, inf);
  EXPECT_EQ(check::compare(V{inf}, V{-inf}).max, inf);
  EXPECT_NE(check::why_not(check::Quantity::lse, DType::f32, check::compare(V{nan}, V{1.0})), "");
}

TEST(Check, LimitsDecide) {
  using check::Quantity;
  EXPECT_EQ(check::why_not(Quantity::out, DType::bf16, {0.1, 3.9e-3}), "");
  EXPECT_NE(check::why_not(Quantity::out, DType::bf16, {0.1, 4.1e-3}), "");
  EXPECT_NE(check::why_not(Quantity::out, DType::f32, {0.1, 1.1e-5}), "");
  EXPECT_EQ(check::why_not(Quantity::gradient, DType::f16, {0.1, 1e-3}, 0.06), "");
  EXPECT_NE(check::why_not(Quantity::gradient, DType::f16, {0.1, 1e-3}, 0.04), "");
  EXPECT_EQ(check::why_not(Quantity::lse, DType::f32, {9e-4, 5.0}), "");
  EXPECT_NE(check::why_not(Quantity::lse, DType::f32, {1.1e-3, 0.0}), "");
}

TEST(Check, OneRowIsJudgedByItself) {
  using check::Quantity;
  std::vector<double> expected(400, 1.0), rounded(400, 1.001), actual = expected;
  const auto share = [&](std::span<const double> with) {
    return check::compare_rows(Quantity::out, DType::bf16, actual, expected, 4, with);
  };
  EXPECT_EQ(share({}).share, 0);
  for (int i = 120; i < 124; ++i) actual[static_cast<std::size_t>(i)] = 1.012;
  // 0.024 off; 2 * 4e-3 * 2 may be, and six times the 0.002 of the rounded run more.
  EXPECT_NEAR(share({}).share, 1.5, 1e-9);
  EXPECT_NEAR(share(rounded).share, 0.024 / 0.028, 1e-9);
  EXPECT_EQ(share({}).row, 30);
  EXPECT_EQ(check::why_not(Quantity::out, DType::bf16, check::compare(actual, expected)), "");
  actual[0] = NAN;  // compare()'s business
  EXPECT_EQ(share({}).row, 30);
  const std::vector<double> lse{2.0, -INFINITY, 0.1}, off{2.00015, -INFINITY, 0.1};
  EXPECT_NEAR(check::compare_rows(Quantity::lse, DType::bf16, off, lse, 1).share, 1.5, 1e-6);
}

// One document, worked out by hand: two keys, scale 1, scalar heads.
TEST(Check, OracleOfTwoTokens) {
  Case c;
  c.layout = from_lengths({2}, 1, "by_hand");
  c.shape = make_shape(1, 1, 1, DType::f32);
  Data data = make_data(c);
  const double q = 2, k0 = 0.5, k1 = -1, v0 = 3, v1 = 5;
  data.q.set(1, 0, 0, q);
  data.k.set(0, 0, 0, k0), data.k.set(1, 0, 0, k1);
  data.v.set(0, 0, 0, v0), data.v.set(1, 0, 0, v1);
  data.dout.set(0, 0, 0, 0), data.dout.set(1, 0, 0, 1);
  const check::Results r = oracle_of(c, data);
  const double p1 = 1 / (1 + std::exp(q * k0 - q * k1)), p0 = 1 - p1;
  EXPECT_NEAR(r.out[0], v0, 1e-12);
  EXPECT_NEAR(r.out[1], p0 * v0 + p1 * v1, 1e-12);
  EXPECT_NEAR(r.lse[1], std::log(std::exp(q * k0) + std::exp(q * k1)), 1e-12);
  EXPECT_EQ(r.lse[2], -INFINITY);
  EXPECT_NEAR(r.dq[1], p0 * p1 * (v0 - v1) * (k0 - k1), 1e-12);
  EXPECT_NEAR(r.dk[0], p0 * p1 * (v0 - v1) * q, 1e-12);
  EXPECT_NEAR(r.dk[1], -p0 * p1 * (v0 - v1) * q, 1e-12);
  EXPECT_NEAR(r.dv[0], p0, 1e-12);
  EXPECT_NEAR(r.dv[1], p1, 1e-12);
  EXPECT_EQ(r.dv[2], 0);
}

TEST(Check, SampledRowsAreRowsOfTheWhole) {
  for (const bool trust : {false, true}) {
    Case c;
    c.layout = from_lengths({20, 0, 7, 31}, {25, 3, 2, 31}, 2, 1, "sampled");
    c.shape = make_shape(4, 2, 8, DType::f32, 6);
    const Data data = make_data(c);
    const Outputs outputs = run_host(c, data);
    const check::Results all = oracle_of(c, data);
    const check::Problem problem =
        check::Problem::from(c.shape, c.layout.cu_q, c.layout.cu_k, c.layout.rows(), c.layout.key_rows());
    const check::Samples samples{{0, 19, 20, 22, 40, c.layout.rows() - 1},
                                 {0, 26, 27, 45, c.layout.key_rows() - 1}};
    std::optional<check::Trusted> trusted;
    if (trust) trusted = check::Trusted{outputs.out.view(), outputs.lse.view()};
    const check::Results part = check::oracle_rows(
        problem, {data.q.view(), data.k.view(), data.v.view(), data.dout.view()}, samples, trusted);
    const double tolerance = trust ? 1e-5 : 1e-12;
    const auto n = samples.rows.size();
    for (std::size_t s = 0; s < n; ++s) {
      for (int h = 0; h < 4; ++h) {
        const double whole = all.lse[h * c.layout.rows() + samples.rows[s]];
        if (std::isinf(whole))
          EXPECT_EQ(part.lse[h * n + s], whole);
        else
          EXPECT_NEAR(part.lse[h * n + s], whole, 1e-12);
      }
      for (int i = 0; i < 24; ++i) EXPECT_NEAR(part.out[s * 24 + i], all.out[samples.rows[s] * 24 + i], 1e-12);
      for (int i = 0; i < 32; ++i) EXPECT_NEAR(part.dq[s * 32 + i], all.dq[samples.rows[s] * 32 + i], 1e-12);
    }
    for (std::size_t s = 0; s < samples.key_rows.size(); ++s) {
      for (int i = 0; i < 16; ++i)
        EXPECT_NEAR(part.dk[s * 16 + i], all.dk[samples.key_rows[s] * 16 + i], tolerance);
      for (int i = 0; i < 12; ++i)
        EXPECT_NEAR(part.dv[s * 12 + i], all.dv[samples.key_rows[s] * 12 + i], tolerance);
    }
  }
}

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Check, PhiloxKnownAnswers) {
  EXPECT_EQ(attention::philox(0, 0, 0, 0, 0), 0x6627e8d5u);
  EXPECT_EQ(attention::philox(0xffffffffffffffffull, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu),
            0x408f276du);
  EXPECT_EQ(attention::philox(0x299f31d0a4093822ull, 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u),
            0xd16cfe09u);
}

}  // namespace
}  // namespace bdcp::test
