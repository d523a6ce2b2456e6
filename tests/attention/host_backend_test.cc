#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/harness.h"
#include "bdcp/error.h"

namespace bdcp::test {
namespace {

using attention::Part;

TEST(HostBackend, MatchesOracle) {
  for (const Case& c : standard_cases(30, 250)) {
    const Data data = make_data(c);
    expect_oracle(c, data, run_host(c, data));
    if (HasFailure()) return;
  }
}

TEST(HostBackend, EveryGqaRatio) {
  for (int ratio = 1; ratio <= 16; ++ratio) {
    Case c;
    c.layout = from_lengths({19, 1, 70}, 3, "gqa");
    c.shape = make_shape(2 * ratio, 2, 12, ratio % 2 ? DType::f32 : DType::bf16);
    const Data data = make_data(c);
    expect_oracle(c, data, run_host(c, data));
  }
}

// O = sum of all elements of out * dout, so that dout is its gradient; central differences of the f32 forward
// are too coarse, so the oracle's float64 forward is differentiated and the backend's gradients compared.
TEST(HostBackend, GradientsAgreeWithFiniteDifferences) {
  Case c;
  c.layout = from_lengths({5, 1, 9}, {7, 3, 6}, 1, 2, "differences");
  c.shape = make_shape(4, 2, 6, DType::f32, 4);
  Data data = make_data(c);
  const Outputs outputs = run_host(c, data);
  const auto loss = [&] {
    check::Problem p =
        check::Problem::from(c.shape, c.layout.cu_q, c.layout.cu_k, c.layout.rows(), c.layout.key_rows());
    const check::Results r = oracle(p, {data.q.view(), data.k.view(), data.v.view(), std::nullopt});
    double sum = 0;
    std::size_t i = 0;
    for (std::int64_t t = 0; t < c.layout.rows(); ++t)
      for (std::int64_t h = 0; h < c.shape.heads_q; ++h)
        for (std::int64_t d = 0; d < c.shape.dim_v(); ++d, ++i)
          if (t < c.layout.cu_q.back()) sum += r.out[i] * data.dout.at(t, h, d);
    return sum;
  };
  const auto check_tensor = [&](HostTensor& x, const HostTensor& gradient, std::int64_t real) {
    for (std::int64_t t = 0; t < real; ++t)
      for (std::int64_t h = 0; h < x.heads(); ++h)
        for (std::int64_t d = 0; d < x.dim(); d += 3) {
          const double at = x.at(t, h, d), step = 1.0 / 1024;
          x.set(t, h, d, at + step);
          const double high_x = x.at(t, h, d), high = loss();
          x.set(t, h, d, at - step);
          const double low_x = x.at(t, h, d), low = loss();
          x.set(t, h, d, at);
          ASSERT_NEAR(gradient.at(t, h, d), (high - low) / (high_x - low_x), 2e-5) << t << " " << h << " " << d;
        }
  };
  check_tensor(data.q, outputs.dq, c.layout.cu_q.back());
  check_tensor(data.k, outputs.dk, c.layout.cu_k.back());
  check_tensor(data.v, outputs.dv, c.layout.cu_k.back());
}

TEST(HostBackend, ForeignPoisonChangesNoBit) {
  Case c;
  c.layout = from_lengths({33, 5, 64, 1, 70}, 9, "poison");
  c.shape = make_shape(6, 2, 20, DType::bf16);
  const Data clean = make_data(c);
  const Outputs expected = run_host(c, clean);
  for (std::size_t doc = 0; doc + 1 < c.layout.cu_q.size(); ++doc) {
    const std::int64_t begin = c.layout.cu_q[doc], end = c.layout.cu_q[doc + 1];
    Data data = clean;
    for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(begin, end);
    const Outputs outputs = run_host(c, data);
    expect_same_bits(outputs, expected, 0, begin, 0, begin);
    expect_same_bits(outputs, expected, end, c.layout.rows(), end, c.layout.rows());
    // Its own results stay poisoned.
    EXPECT_TRUE(std::isnan(outputs.out.at(begin, 0, 0)));
    EXPECT_TRUE(std::isnan(outputs.lse.data[begin]));
    EXPECT_TRUE(std::isnan(outputs.dq.at(end - 1, 0, 0)));
    EXPECT_TRUE(std::isnan(outputs.dk.at(begin, 0, 0)));
    EXPECT_TRUE(std::isnan(outputs.dv.at(begin, 0, 0)));
  }
}

TEST(HostBackend, LaterTokensChangeNoEarlierRow) {
  Case c;
  c.layout = from_lengths({100}, 0, "causal");
  c.shape = make_shape(2, 1, 8, DType::f32);
  const Data clean = make_data(c);
  const Outputs expected = run_host(c, clean);
  for (const std::int64_t from : {1, 63, 64, 65, 99}) {
    Data data = clean;
    data.k.poison(from, 100);
    data.v.poison(from, 100);
    const Outputs outputs = run_host(c, data);
    EXPECT_TRUE(outputs.out.same_bits(expected.out, 0, from));
    EXPECT_TRUE(outputs.dq.same_bits(expected.dq, 0, from));
    EXPECT_TRUE(same_bits(outputs.lse, expected.lse, 0, from));
  }
}

TEST(HostBackend, VeryLowLogitsAreNotASentinel) {
  Case c;
  c.layout = from_lengths({1, 3}, 0, "low_logits");
  c.shape = make_shape(1, 1, 4, DType::f32);
  c.shape.scale = 1.0;
  Data data = make_data(c);
  data.q.fill(400.0);
  data.k.fill(-400.0);  // logits of -640000
  const Outputs outputs = run_host(c, data);
  EXPECT_EQ(outputs.out.at(0, 0, 0), data.v.at(0, 0, 0));
  EXPECT_EQ(outputs.lse.data[0], -640000.0f);
  EXPECT_NEAR(outputs.out.at(3, 0, 1), (data.v.at(1, 0, 1) + data.v.at(2, 0, 1) + data.v.at(3, 0, 1)) / 3,
              1e-6);
}

TEST(HostBackend, OneQueryOneKeyHasZeroQueryGradient) {
  Case c;
  c.layout = from_lengths({1}, 0, "single");
  c.shape = make_shape(1, 1, 16, DType::f32);
  const Data data = make_data(c);
  const Outputs outputs = run_host(c, data);
  for (int d = 0; d < 16; ++d) EXPECT_NEAR(outputs.dq.at(0, 0, d), 0.0, 1e-7);
}

TEST(HostBackend, LargeInputsStayFinite) {
  Case c;
  c.layout = from_lengths({300}, 0, "times_three");
  c.shape = make_shape(1, 1, 128, DType::f16);
  c.sigma = 3.0;
  const Data data = make_data(c);
  const Outputs outputs = run_host(c, data);
  for (const HostTensor* x : {&outputs.out, &outputs.dq, &outputs.dk, &outputs.dv})
    for (const double value : x->values()) ASSERT_TRUE(std::isfinite(value));
}

TEST(HostBackend, DropoutMatchesOracleAndKeepsLse) {
  for (const double p : {0.1, 0.5, 0.9}) {
    Case c;
    c.layout = from_lengths({40, 1, 30}, {40, 5, 66}, 2, 1, "dropout");
    c.shape = make_shape(4, 2, 16, DType::f32);
    c.shape.dropout_p = p;
    c.dropout = {0x123456789abcdef0ull, 17};
    const Data data = make_data(c);
    const Outputs outputs = run_host(c, data);
    expect_oracle(c, data, outputs);
    Case without = c;
    without.shape.dropout_p = 0;
    EXPECT_TRUE(same_bits(outputs.lse, run_host(without, data).lse, 0, c.layout.rows()));
  }
}

TEST(HostBackend, GapsBetweenStridesStayUntouched) {
  Case c;
  c.layout = from_lengths({6, 3}, 2, "gaps");
  c.shape = make_shape(2, 1, 5, DType::bf16);
  c.order = HostTensor::Order::padded;
  const Data data = make_data(c);
  const Outputs before = make_outputs(c);
  Outputs after = run_host(c, data);
  const auto same_gaps = [&](const HostTensor& a, HostTensor& b) {
    for (std::int64_t t = 0; t < a.tokens(); ++t)
      for (std::int64_t h = 0; h < a.heads(); ++h)
        for (std::int64_t d = 0; d < a.dim(); ++d) b.set(t, h, d, a.at(t, h, d));
    // 0xCDCD is an ordinary bf16 number, so that copying elements restores the original bytes.
    return a.bytes() == b.bytes();
  };
  EXPECT_TRUE(same_gaps(before.out, after.out));
  EXPECT_TRUE(same_gaps(before.dq, after.dq));
  EXPECT_TRUE(same_gaps(before.dk, after.dk));
  EXPECT_TRUE(same_gaps(before.dv, after.dv));
}

TEST(HostBackend, VerdictsNameTheReason) {
  const auto host = attention::make_host_backend();
  device::DeviceFacts facts;
  facts.ordinal = 3;
  facts.cc_major = 9;
  facts.arch = "sm_90a";
  const auto code = [&](const CallShape& shape) { return host->can(shape, {}, {}).code; };
  EXPECT_TRUE(host->can(make_shape(4, 2, 64, DType::bf16), {}, {}).ok);
  EXPECT_EQ(host->can(make_shape(4, 2, 64, DType::bf16), {&facts}, {}).code, "host_memory_only");
  EXPECT_EQ(code(make_shape(4, 3, 64, DType::bf16)), "heads");
  EXPECT_EQ(code(make_shape(0, 1, 64, DType::bf16)), "heads");
  EXPECT_EQ(code(make_shape(1, 1, 0, DType::bf16)), "head_dim");
  CallShape shape = make_shape(1, 1, 8, DType::f32);
  shape.scale = -1;
  EXPECT_EQ(code(shape), "scale");
  shape.scale = std::nan("");
  EXPECT_EQ(code(shape), "scale");
  shape.scale = 1;
  shape.dropout_p = 1;
  EXPECT_EQ(code(shape), "dropout");

  const auto reference = attention::make_reference_backend();
  EXPECT_EQ(reference->can(make_shape(4, 2, 64, DType::bf16), {}, {}).code, "needs_cuda");
  EXPECT_TRUE(reference->can(make_shape(4, 2, 512, DType::f32), {&facts}, {}).ok);
  const plan::Verdict wide = reference->can(make_shape(4, 2, 513, DType::f32), {&facts}, {});
  EXPECT_EQ(wide.code, "head_dim");
  EXPECT_THAT(wide.text, testing::HasSubstr("513"));
  EXPECT_THAT(wide.text, testing::HasSubstr("512"));
  facts.cc_major = 6;
  EXPECT_EQ(reference->can(make_shape(4, 2, 64, DType::f32), {&facts}, {}).code, "arch");
}

TEST(HostBackend, WrongTensorsAreNamed) {
  Case c;
  c.layout = from_lengths({6}, 0, "wrong");
  c.shape = make_shape(2, 1, 8, DType::f32);
  const Data data = make_data(c);
  Outputs outputs = make_outputs(c);
  const auto prepared = attention::make_host_backend()->prepare(c.shape, single_rank_plan(c.layout), {}, {});
  attention::ForwardCall call = forward_call(c, data, outputs);
  call.v.heads = 2;
  try {
    prepared->forward(call, Part::local, Stream::host());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.message(), testing::HasSubstr("v is f32 [6, 2, 8], must be f32 [6, 1, 8]"));
  }
  EXPECT_THROW(prepared->forward(forward_call(c, data, outputs), Part::local, Stream::cuda(nullptr, 0)), Error);
}

TEST(HostBackend, BackendsComeInOrderOfPreference) {
  const auto backends = attention::make_backends();
  std::size_t last = 0;
  for (const auto& backend : backends) {
    const auto at = static_cast<std::size_t>(
        std::find(plan::kBackendOrder.begin(), plan::kBackendOrder.end(), backend->kind()) -
        plan::kBackendOrder.begin());
    ASSERT_LT(at, plan::kBackendOrder.size());
    EXPECT_TRUE(at > last || &backend == &backends.front());
    last = at;
  }
  EXPECT_EQ(backends.back()->kind(), BackendKind::host);
}

}  // namespace
}  // namespace bdcp::test
