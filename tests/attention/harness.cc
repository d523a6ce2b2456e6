#include "attention/harness.h"

#include <cmath>
#include <cstring>

namespace bdcp::test {

using attention::Part;

std::string describe(const Case& c) {
  return c.layout.name + " heads " + std::to_string(c.shape.heads_q) + ":" + std::to_string(c.shape.heads_kv) +
         " dims " + std::to_string(c.shape.head_dim) + "," + std::to_string(c.shape.dim_v()) + " " +
         std::string(to_string(c.shape.dtype)) + " order " + std::to_string(static_cast<int>(c.order));
}

CallShape make_shape(int heads_q, int heads_kv, int head_dim, DType dtype, int head_dim_v) {
  CallShape shape;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.head_dim = head_dim;
  shape.head_dim_v = head_dim_v;
  shape.dtype = dtype;
  return shape;
}

plan::RankPlan single_rank_plan(const RaggedLayout& layout) {
  plan::RankPlan plan;
  plan.rows = layout.rows();
  plan.key_rows = layout.key_rows();
  plan.shared_begin = plan.key_rows;
  plan.range = {0, layout.cu_q.back(), 0, layout.cu_k.back(), 0};
  for (std::size_t i = 0; i + 1 < layout.cu_q.size(); ++i)
    plan.segments.push_back(
        {static_cast<std::int32_t>(layout.cu_q[i]), static_cast<std::int32_t>(layout.cu_q[i + 1]),
         static_cast<std::int32_t>(layout.cu_k[i]), static_cast<std::int32_t>(layout.cu_k[i + 1])});
  return plan;
}

Data make_data(const Case& c) {
  const CallShape& s = c.shape;
  const std::int64_t rows = c.layout.rows(), keys = c.layout.key_rows();
  Data data{{s.dtype, rows, s.heads_q, s.head_dim, c.order},
            {s.dtype, keys, s.heads_kv, s.head_dim, c.order},
            {s.dtype, keys, s.heads_kv, s.dim_v(), c.order},
            {s.dtype, rows, s.heads_q, s.dim_v(), c.order}};
  data.q.randomize(c.seed * 4 + 0, c.sigma).poison(c.layout.cu_q.back(), rows);
  data.k.randomize(c.seed * 4 + 1, c.sigma).poison(c.layout.cu_k.back(), keys);
  data.v.randomize(c.seed * 4 + 2).poison(c.layout.cu_k.back(), keys);
  data.dout.randomize(c.seed * 4 + 3).poison(c.layout.cu_q.back(), rows);
  return data;
}

Outputs make_outputs(const Case& c) {
  const CallShape& s = c.shape;
  const std::int64_t rows = c.layout.rows(), keys = c.layout.key_rows();
  return {{s.dtype, rows, s.heads_q, s.dim_v(), c.order},
          {s.dtype, rows, s.heads_q, s.head_dim, c.order},
          {s.dtype, keys, s.heads_kv, s.head_dim, c.order},
          {s.dtype, keys, s.heads_kv, s.dim_v(), c.order},
          {s.heads_q, rows}};
}

namespace {
check::Problem problem_of(const Case& c) {
  check::Problem problem =
      check::Problem::from(c.shape, c.layout.cu_q, c.layout.cu_k, c.layout.rows(), c.layout.key_rows());
  problem.dropout = c.dropout;
  return problem;
}
check::Inputs inputs_of(const Data& data) {
  return {data.q.view(), data.k.view(), data.v.view(), data.dout.view()};
}
}  // namespace

check::Results oracle_of(const Case& c, const Data& data) { return oracle(problem_of(c), inputs_of(data)); }

attention::ForwardCall forward_call(const Case& c, const Data& data, Outputs& outputs) {
  attention::ForwardCall call;
  call.q = data.q.view();
  call.k = data.k.view();
  call.v = data.v.view();
  call.out = outputs.out.view();
  call.lse = outputs.lse.view();
  call.dropout = c.dropout;
  return call;
}

attention::BackwardCall backward_call(const Case& c, const Data& data, Outputs& outputs) {
  attention::BackwardCall call;
  call.q = data.q.view();
  call.k = data.k.view();
  call.v = data.v.view();
  call.dout = data.dout.view();
  call.out = outputs.out.view();
  call.lse = outputs.lse.view();
  call.dq = outputs.dq.view();
  call.dk = outputs.dk.view();
  call.dv = outputs.dv.view();
  call.dropout = c.dropout;
  return call;
}

Outputs run(const attention::PreparedAttention& prepared, const Case& c, const Data& data) {
  Outputs outputs = make_outputs(c);
  std::vector<float> workspace(prepared.backward_workspace() / sizeof(float) + 1, -7.0f);
  const attention::ForwardCall forward = forward_call(c, data, outputs);
  for (const Part part : {Part::local, Part::remote}) prepared.forward(forward, part, Stream::host());
  attention::BackwardCall backward = backward_call(c, data, outputs);
  backward.workspace = {workspace.data(), workspace.size() * sizeof(float)};
  for (const Part part : {Part::local, Part::remote}) prepared.backward(backward, part, Stream::host());
  return outputs;
}

Outputs run_host(const Case& c, const Data& data) {
  const auto backend = attention::make_host_backend();
  return run(*backend->prepare(c.shape, single_rank_plan(c.layout), {}, {}), c, data);
}

Expected expected_of(const Case& c, const Data& data, bool gradients) {
  check::Inputs inputs = inputs_of(data);
  if (!gradients) inputs.dout.reset();
  return {oracle(problem_of(c), inputs), oracle_rounded(problem_of(c), inputs, c.shape.dtype)};
}

namespace {

bool zero_rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t h = 0; h < tensor.heads(); ++h)
      for (std::int64_t d = 0; d < tensor.dim(); ++d)
        if (tensor.at(t, h, d) != 0) return false;
  return true;
}

::testing::AssertionResult rows_pass(check::Quantity quantity, DType dtype, const std::vector<double>& actual,
                                     const std::vector<double>& expected, std::int64_t width,
                                     const std::vector<double>& rounded) {
  const check::RowError worst = check::compare_rows(quantity, dtype, actual, expected, width, rounded);
  if (worst.share <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "row " << worst.row << " (token and head, or head and token of lse) is " << worst.share
         << " times as far off as a row may be";
}

// The metric would forgive small values where exact zeros are promised.
void expect_zeros(const Case& c, const Outputs& outputs, bool lse, bool gradients) {
  const std::int64_t rows = c.layout.rows(), keys = c.layout.key_rows();
  const auto no_keys = [&](std::int64_t begin, std::int64_t end) {
    EXPECT_TRUE(zero_rows(outputs.out, begin, end)) << "out of rows " << begin << " to " << end;
    for (int h = 0; h < c.shape.heads_q && lse; ++h)
      for (std::int64_t t = begin; t < end; ++t)
        ASSERT_EQ(outputs.lse.data[static_cast<std::size_t>(h * rows + t)], -INFINITY) << "lse of row " << t;
    if (gradients) {
      EXPECT_TRUE(zero_rows(outputs.dq, begin, end)) << "dq of rows " << begin << " to " << end;
    }
  };
  const auto no_rows = [&](std::int64_t begin, std::int64_t end) {
    if (!gradients) return;
    EXPECT_TRUE(zero_rows(outputs.dk, begin, end)) << "dk of keys " << begin << " to " << end;
    EXPECT_TRUE(zero_rows(outputs.dv, begin, end)) << "dv of keys " << begin << " to " << end;
  };
  no_keys(c.layout.cu_q.back(), rows);
  no_rows(c.layout.cu_k.back(), keys);
  for (std::size_t i = 0; i + 1 < c.layout.cu_q.size(); ++i) {
    const std::int64_t q = c.layout.cu_q[i + 1] - c.layout.cu_q[i], k = c.layout.cu_k[i + 1] - c.layout.cu_k[i];
    if (q > k) no_keys(c.layout.cu_q[i], c.layout.cu_q[i] + q - k);
    if (q == 0) no_rows(c.layout.cu_k[i], c.layout.cu_k[i + 1]);
  }
}

}  // namespace

void expect_results(const Case& c, const Expected& expected, const Outputs& outputs, bool lse, bool gradients) {
  SCOPED_TRACE(describe(c));
  using check::Quantity;
  const auto expect = [&](const char* name, Quantity quantity, const std::vector<double>& actual,
                          std::vector<double> check::Results::*member, std::int64_t width) {
    const std::vector<double>&exact = expected.exact.*member, &rounded = expected.rounded.*member;
    EXPECT_TRUE(numbers_pass(quantity, c.shape.dtype, actual, exact, &rounded)) << name;
    EXPECT_TRUE(rows_pass(quantity, c.shape.dtype, actual, exact, width, rounded)) << name;
  };
  expect("out", Quantity::out, outputs.out.values(), &check::Results::out, c.shape.dim_v());
  if (lse) expect("lse", Quantity::lse, outputs.lse.values(), &check::Results::lse, 1);
  if (gradients) {
    expect("dq", Quantity::gradient, outputs.dq.values(), &check::Results::dq, c.shape.head_dim);
    expect("dk", Quantity::gradient, outputs.dk.values(), &check::Results::dk, c.shape.head_dim);
    expect("dv", Quantity::gradient, outputs.dv.values(), &check::Results::dv, c.shape.dim_v());
  }
  expect_zeros(c, outputs, lse, gradients);
}

void expect_oracle(const Case& c, const Data& data, const Outputs& outputs) {
  expect_results(c, expected_of(c, data), outputs);
}

bool same_bits(const HostLse& a, const HostLse& b, std::int64_t begin, std::int64_t end) {
  for (std::int64_t h = 0; h < a.heads; ++h)
    if (end > begin && std::memcmp(&a.data[h * a.tokens + begin], &b.data[h * b.tokens + begin],
                                   static_cast<std::size_t>(end - begin) * sizeof(float)) != 0)
      return false;
  return true;
}

void expect_same_bits(const Outputs& a, const Outputs& b, std::int64_t q_begin, std::int64_t q_end,
                      std::int64_t k_begin, std::int64_t k_end) {
  EXPECT_TRUE(a.out.same_bits(b.out, q_begin, q_end)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse, q_begin, q_end)) << "lse";
  EXPECT_TRUE(a.dq.same_bits(b.dq, q_begin, q_end)) << "dq";
  EXPECT_TRUE(a.dk.same_bits(b.dk, k_begin, k_end)) << "dk";
  EXPECT_TRUE(a.dv.same_bits(b.dv, k_begin, k_end)) << "dv";
}

std::vector<Case> standard_cases(int random_layouts, std::int64_t max_rows) {
  const CallShape shapes[] = {
      make_shape(4, 1, 16, DType::f32),     make_shape(3, 1, 40, DType::bf16),
      make_shape(7, 1, 24, DType::f16, 8),  make_shape(2, 2, 33, DType::f32, 17),
      make_shape(16, 1, 8, DType::bf16),    make_shape(6, 3, 72, DType::f16),
      make_shape(1, 1, 1, DType::f32),      make_shape(9, 3, 64, DType::bf16),
      make_shape(4, 2, 48, DType::f32, 32),
  };
  const HostTensor::Order orders[] = {HostTensor::Order::packed, HostTensor::Order::padded,
                                      HostTensor::Order::heads_first};
  std::vector<RaggedLayout> layouts = tricky_layouts();
  for (int i = 0; i < random_layouts; ++i) layouts.push_back(random_layout(100 + i, max_rows));
  std::vector<Case> cases;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    Case c;
    c.layout = layouts[i];
    c.shape = shapes[i % std::size(shapes)];
    c.order = orders[i % std::size(orders)];
    c.seed = 1000 + i;
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace bdcp::test
