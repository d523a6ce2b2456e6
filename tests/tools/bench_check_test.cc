// bdcp-bench's checks find what they are there to find.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "bench/check.h"
#include "bench/inputs.h"
#include "bench/report.h"
#include "bench/session.h"
#include "bench/workload.h"
#include "check/numbers.h"

namespace bdcp::bench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Tensors kAll{.forward = true, .gradients = true};

CallShape shape_of(int heads_q, int heads_kv, int head_dim, int head_dim_v, DType dtype) {
  CallShape shape;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.head_dim = head_dim;
  shape.head_dim_v = head_dim_v;
  shape.dtype = dtype;
  return shape;
}

/// A small problem with exact results in bf16, and f32 results as a trusted run would give them.
class BenchCheck : public testing::Test {
 protected:
  BenchCheck() {
    shape_ = shape_of(4, 2, 16, 24, DType::bf16);
    problem_ = check::Problem::from(shape_, {0, 20, 20, 53, 60}, {0, 20, 20, 53, 60}, 64, 64);
    inputs_ = random_inputs(problem_, DType::bf16, 7);
    exact_ = check::oracle(problem_, views(inputs_, problem_, DType::bf16));
    outputs_ = as(DType::bf16);
  }
  Outputs as(DType dtype) const {
    const auto bytes = [&](const std::vector<double>& values) {
      std::vector<std::byte> out(values.size() * size_of(dtype));
      for (std::size_t i = 0; i < values.size(); ++i) {
        check::store(out.data(), dtype, static_cast<std::int64_t>(i), values[i]);
      }
      return out;
    };
    return {bytes(exact_.out),
            bytes(exact_.dq),
            bytes(exact_.dk),
            bytes(exact_.dv),
            {exact_.lse.begin(), exact_.lse.end()}};
  }
  Checked check(OracleMode mode) {
    return check_numbers(problem_, shape_, inputs_, outputs_, mode,
                         [&](const Inputs&) { return as(DType::f32); });
  }
  static bool passes(const Checked& checked, const std::string& name) {
    const auto found = std::find_if(checked.errors.begin(), checked.errors.end(),
                                    [&](const TensorError& error) { return error.name == name; });
    return found != checked.errors.end() && found->pass;
  }
  static void add(std::vector<std::byte>& bytes, std::int64_t index, double change) {
    check::store(bytes.data(), DType::bf16, index, check::load(bytes.data(), DType::bf16, index) + change);
  }
  void set_row(std::vector<std::byte>& bytes, std::int64_t width, std::int64_t row, double value) {
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i)
      check::store(bytes.data(), DType::bf16, i, value);
  }

  CallShape shape_;
  check::Problem problem_;
  Inputs inputs_;
  check::Results exact_;
  Outputs outputs_;
};

TEST_F(BenchCheck, ExactResultsPassInBothModes) {
  for (const OracleMode mode : {OracleMode::full, OracleMode::sampled}) {
    const Checked checked = check(mode);
    ASSERT_EQ(checked.errors.size(), 5u);
    for (const TensorError& error : checked.errors) {
      EXPECT_TRUE(error.pass) << error.name << " max " << error.max << " rel_l2 " << error.rel_l2;
    }
  }
}

TEST_F(BenchCheck, OneWrongElementFailsItsTensorAlone) {
  add(outputs_.dk, 5, 0.5);
  for (const OracleMode mode : {OracleMode::full, OracleMode::sampled}) {
    const Checked checked = check(mode);
    EXPECT_FALSE(passes(checked, "dk"));
    for (const char* other : {"out", "lse", "dq", "dv"}) EXPECT_TRUE(passes(checked, other)) << other;
  }
}

TEST_F(BenchCheck, WrongLseAndNanFail) {
  outputs_.lse[3] += 0.01f;
  set_row(outputs_.out, 4 * 24, 30, std::nan(""));
  const Checked checked = check(OracleMode::full);
  EXPECT_FALSE(passes(checked, "lse"));
  EXPECT_FALSE(passes(checked, "out"));
}

TEST_F(BenchCheck, UntrustworthyReferenceFails) {
  const auto wrong = [&](const Inputs&) {
    Outputs outputs = as(DType::f32);
    for (float& lse : outputs.lse) lse += 0.01f;
    return outputs;
  };
  const Checked checked = check_numbers(problem_, shape_, inputs_, outputs_, OracleMode::sampled, wrong);
  EXPECT_FALSE(passes(checked, "lse"));
}

// One head of one row that saw a key too few: small against its tensor, and against the largest rounding error.
TEST(BenchCheckRows, AKeyTooFewInOneRowIsFound) {
  const CallShape shape = shape_of(2, 1, 32, 32, DType::bf16);
  const check::Problem whole = check::Problem::from(shape, {0, 150}, {0, 150}, 150, 150);
  const Inputs inputs = random_inputs(whole, DType::bf16, 5);
  const check::Inputs views = bench::views(inputs, whole, DType::bf16);
  const check::Results rounded = check::oracle_rounded(whole, views, DType::bf16);
  // The same rows and keys, the last row without the first key.
  const check::Problem less = check::Problem::from(shape, {0, 1, 150}, {0, 1, 150}, 150, 150);
  const check::Results other = check::oracle_rounded(less, views, DType::bf16);
  const auto bytes = [&](const std::vector<double>& values) {
    std::vector<std::byte> out(values.size() * 2);
    for (std::size_t i = 0; i < values.size(); ++i)
      check::store(out.data(), DType::bf16, static_cast<std::int64_t>(i), values[i]);
    return out;
  };
  Outputs outputs{bytes(rounded.out),
                  bytes(rounded.dq),
                  bytes(rounded.dk),
                  bytes(rounded.dv),
                  {rounded.lse.begin(), rounded.lse.end()}};
  const auto failed = [&] {
    std::string names;
    for (const TensorError& error : check_numbers(whole, shape, inputs, outputs, OracleMode::full, {}).errors)
      if (!error.pass) names += error.name + " ";
    return names;
  };
  EXPECT_EQ(failed(), "");
  constexpr std::int64_t kLast = 149 * 2 * 32;  // one head of the last row
  std::memcpy(outputs.out.data() + 2 * kLast, bytes(other.out).data() + 2 * kLast, 64);
  std::memcpy(outputs.dq.data() + 2 * kLast, bytes(other.dq).data() + 2 * kLast, 64);
  outputs.lse[149] = static_cast<float>(other.lse[149]);
  EXPECT_EQ(failed(), "out lse dq ");
}

TEST_F(BenchCheck, PaddingMustBeZero) {
  EXPECT_TRUE(padding_is_zero(problem_, DType::bf16, outputs_, kAll));
  Outputs wrong = outputs_;
  set_row(wrong.dv, 2 * 24, 63, 1e-30);
  EXPECT_FALSE(padding_is_zero(problem_, DType::bf16, wrong, kAll));
  EXPECT_TRUE(padding_is_zero(problem_, DType::bf16, wrong, {.forward = true, .gradients = false}));
  wrong = outputs_;
  wrong.lse[60] = 0;
  EXPECT_FALSE(padding_is_zero(problem_, DType::bf16, wrong, kAll));
}

TEST_F(BenchCheck, RepeatComparesEveryPromisedTensor) {
  Outputs other = outputs_;
  EXPECT_TRUE(same_bits(outputs_, other, kAll, true));
  add(other.dq, 0, 1);
  EXPECT_FALSE(same_bits(outputs_, other, kAll, true));
  EXPECT_TRUE(same_bits(outputs_, other, kAll, false));
  other = outputs_;
  other.lse[0] += 1;
  EXPECT_FALSE(same_bits(outputs_, other, kAll, false));
}

TEST_F(BenchCheck, PoisonThatLeaksIsCounted) {
  constexpr std::int64_t kDocument = 2;
  const auto poisoned = [&] {
    Outputs outputs = outputs_;
    for (std::int64_t row = 20; row < 53; ++row) {
      set_row(outputs.out, 4 * 24, row, std::nan(""));
      set_row(outputs.dq, 4 * 16, row, std::nan(""));
      set_row(outputs.dk, 2 * 16, row, std::nan(""));
      set_row(outputs.dv, 2 * 24, row, std::nan(""));
      for (int head = 0; head < 4; ++head)
        outputs.lse[static_cast<std::size_t>(head * 64 + row)] = std::nanf("");
    }
    return outputs;
  };
  Outputs after = poisoned();
  EXPECT_TRUE(compare_poisoned(problem_, DType::bf16, kDocument, outputs_, after, kAll, true).pass());
  add(after.out, 19 * 4 * 24, 0.25);
  add(after.dv, 53 * 2 * 24 + 1, 0.25);
  PoisonResult result = compare_poisoned(problem_, DType::bf16, kDocument, outputs_, after, kAll, true);
  EXPECT_EQ(result.rows_changed, 2);
  EXPECT_FALSE(result.pass());

  after = poisoned();
  set_row(after.out, 4 * 24, 21, 0);
  EXPECT_FALSE(
      compare_poisoned(problem_, DType::bf16, kDocument, outputs_, after, kAll, true).document_keeps_nan);

  // dQ that is not reproducible may differ in its bits, but holds no NaN.
  after = poisoned();
  add(after.dq, 0, 0.25);
  EXPECT_TRUE(compare_poisoned(problem_, DType::bf16, kDocument, outputs_, after, kAll, false).pass());
  set_row(after.dq, 4 * 16, 0, kInf);
  EXPECT_FALSE(compare_poisoned(problem_, DType::bf16, kDocument, outputs_, after, kAll, false).pass());
}

TEST(BenchWorkload, AreaAndFlops) {
  Workload workload;
  workload.cu_q = {0, 3, 8, 8, 10};
  workload.cu_k = {0, 5, 7, 9, 9};
  // 3 queries of 5 keys: 3+4+5; 5 queries of 2 keys: 1+2; no queries; no keys.
  EXPECT_EQ(workload.area(), 15);
  const CallShape shape = shape_of(2, 1, 192, 128, DType::bf16);
  EXPECT_EQ(flops(workload, shape, Direction::forward), 2 * 2 * (192 + 128) * 15.0);
  EXPECT_EQ(flops(workload, shape, Direction::backward), 2 * 2 * (3 * 192 + 2 * 128) * 15.0);
}

TEST(BenchWorkload, RandomLayoutsAreReproducibleAndValid) {
  bool rectangular = false, small = false, q_above_k = false, zero_first = false, zero_last = false;
  for (int index = 0; index < 36; ++index) {
    const Workload workload = random_workload(3, index, 1, 500);
    EXPECT_EQ(workload.cu_q, random_workload(3, index, 1, 500).cu_q);
    EXPECT_EQ(workload.layout(1).real_tokens(), workload.tokens());
    rectangular = rectangular || !workload.square;
    EXPECT_TRUE(random_workload(3, index, 4, 500).square);
    small = small || (!workload.square && workload.documents() > 4);
    for (std::size_t i = 0; i + 1 < workload.cu_q.size(); ++i)
      q_above_k =
          q_above_k || workload.cu_q[i + 1] - workload.cu_q[i] > workload.cu_k[i + 1] - workload.cu_k[i];
    zero_first = zero_first || (workload.square && workload.cu_q[1] == 0);
    zero_last = zero_last || (workload.square && workload.cu_q.back() == workload.cu_q.end()[-2]);
  }
  EXPECT_TRUE(rectangular && small && q_above_k && zero_first && zero_last);
}

TEST(BenchInputs, AreStandardNormal) {
  const check::Problem problem =
      check::Problem::from(shape_of(8, 8, 64, 64, DType::f32), {0, 512}, {0, 512}, 512, 512);
  const Inputs inputs = random_inputs(problem, DType::f32, 11);
  const std::vector<double> q = check::to_doubles(views(inputs, problem, DType::f32).q);
  double sum = 0, squares = 0;
  std::int64_t beyond_two = 0;
  for (const double value : q) {
    sum += value;
    squares += value * value;
    beyond_two += std::abs(value) > 2 ? 1 : 0;
  }
  const double count = static_cast<double>(q.size());
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.01);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 0.003);
  EXPECT_NE(inputs.q, inputs.k);
}

TEST(BenchTime, HostRowsAreEvenAndFewWhereCallsAreLong) {
  const auto calls = [](double ms) { return std::pair(host_calls(ms).rounds, host_calls(ms).layers); };
  EXPECT_EQ(calls(0), std::pair(5, 32));
  EXPECT_EQ(calls(9.0), std::pair(5, 32));
  EXPECT_EQ(calls(20.0), std::pair(2, 32));
  EXPECT_EQ(calls(80.0), std::pair(1, 32));
  EXPECT_EQ(calls(170.0), std::pair(1, 16));  // 17 fit
  EXPECT_EQ(calls(1e9), std::pair(1, 4));
}

TEST(BenchTime, WarmupIsShortWhereCallsAreLong) {
  EXPECT_EQ(further_warmup(0, 1), 0);
  EXPECT_EQ(further_warmup(2, 1), 0);
  EXPECT_EQ(further_warmup(5, 0), 3);
  EXPECT_EQ(further_warmup(5, 170), 3);
  EXPECT_EQ(further_warmup(1000000, 170), 8);
  EXPECT_EQ(further_warmup(5, 5000), 0);
}

TEST(BenchTime, ExposedIsWhatTheSlowestRankWouldSave) {
  const auto reading = [](double forward, double backward, std::uint64_t untimed) {
    ExposedExchange exposed;
    exposed.forward_us = forward;
    exposed.backward_us = backward;
    exposed.untimed_waits = untimed;
    return exposed;
  };
  const CallTime timed = call_time(50, reading(100, 7, 2), reading(110, 8, 2), Direction::forward);
  EXPECT_EQ(timed.all, 50.0);
  EXPECT_EQ(timed.working, 40.0);
  EXPECT_EQ(call_time(50, reading(100, 7, 2), reading(110, 8, 2), Direction::backward).working, 49.0);
  const CallTime untimed = call_time(50, reading(0, 0, 0), reading(5, 0, 1), Direction::forward);
  // One rank waits 60 for the other, which waits 10 itself.
  EXPECT_EQ(mean_exposed({{101, 90}, untimed, {103, 90}}), 12.0);
  EXPECT_EQ(mean_exposed({untimed}), std::nullopt);
  EXPECT_EQ(mean_exposed({}), std::nullopt);
}

TEST(BenchReport, ExposedIsNullWhereNoCallWasTimed) {
  Workload workload;
  workload.cu_q = workload.cu_k = {0, 8};
  Measurement line;
  line.workload = &workload;
  line.shape = shape_of(2, 1, 16, 16, DType::bf16);
  line.world = 2;
  line.timing = Timing{.ms = 1, .host_us = {}, .exposed_us = {}};
  EXPECT_NE(to_json_line(line).find("\"exposed_us\":null"), std::string::npos);
  line.timing->exposed_us = 1.5;
  EXPECT_NE(to_json_line(line).find("\"exposed_us\":1.5"), std::string::npos);
  line.world = 1;
  EXPECT_EQ(to_json_line(line).find("exposed_us"), std::string::npos);
}

}  // namespace
}  // namespace bdcp::bench
