#include "bench/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "bench/inputs.h"
#include "check/numbers.h"

namespace bdcp::bench {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
/// Multiplications and additions per core that a full float64 run, or the rounded run of a sampled check, may
/// cost.
constexpr double kFullBudget = 2e9, kPrefixBudget = 5e8;
constexpr int kSampledRows = 48, kSampledKeys = 24;

double cores() { return std::max(1u, std::thread::hardware_concurrency()); }

double cost(const check::Problem& p, double pairs) {
  return 2.0 * p.heads_q * (4.0 * p.head_dim + 3.0 * p.head_dim_v) * pairs;
}

double visible_pairs(const check::Problem& p) {
  Workload workload;
  workload.cu_q = p.cu_q;
  workload.cu_k = p.cu_k;
  return workload.area();
}

/// One list of all tensors in both forms, so that every comparison treats them alike.
struct Column {
  const char* name;
  check::Quantity quantity;
  std::vector<double> actual;
  const std::vector<double>*expected, *rounded;
  std::int64_t width;  ///< of one row: a token and a head

  check::RowError worst_row(DType dtype) const {
    return check::compare_rows(quantity, dtype, actual, *expected, width,
                               rounded ? std::span<const double>(*rounded) : std::span<const double>());
  }
};

std::vector<Column> columns(const check::Problem& p, DType dtype, const Outputs& actual,
                            const check::Results& expected, const check::Results* rounded) {
  const auto values = [&](const std::vector<std::byte>& bytes, std::int64_t rows, int heads, int dim) {
    return check::to_doubles(ConstTensorView::packed(bytes.data(), dtype, rows, heads, dim));
  };
  const auto of = [&](std::vector<double> check::Results::*member) {
    return rounded ? &(rounded->*member) : nullptr;
  };
  std::vector<Column> list;
  list.push_back({"out", check::Quantity::out, values(actual.out, p.rows, p.heads_q, p.head_dim_v),
                  &expected.out, of(&check::Results::out), p.head_dim_v});
  list.push_back(
      {"lse", check::Quantity::lse, {actual.lse.begin(), actual.lse.end()}, &expected.lse, nullptr, 1});
  if (actual.dq.empty() && actual.dk.empty()) return list;
  list.push_back({"dq", check::Quantity::gradient, values(actual.dq, p.rows, p.heads_q, p.head_dim),
                  &expected.dq, of(&check::Results::dq), p.head_dim});
  list.push_back({"dk", check::Quantity::gradient, values(actual.dk, p.key_rows, p.heads_kv, p.head_dim),
                  &expected.dk, of(&check::Results::dk), p.head_dim});
  list.push_back({"dv", check::Quantity::gradient, values(actual.dv, p.key_rows, p.heads_kv, p.head_dim_v),
                  &expected.dv, of(&check::Results::dv), p.head_dim_v});
  return list;
}

void judge_rows(TensorError& error, const Column& column, DType dtype) {
  error.worst_row = std::max(error.worst_row, column.worst_row(dtype).share);
  error.pass = error.pass && error.worst_row <= 1;
}

/// `rounded_max`: largest error of the rounded run, or negative where there is none.
TensorError judge(const char* name, check::Quantity quantity, DType dtype, check::Errors errors,
                  double rounded_max) {
  TensorError error{
      .name = name, .max = errors.max, .rel_l2 = errors.rel_l2, .max_limit = kInf, .rel_l2_limit = kInf};
  (quantity == check::Quantity::lse ? error.max_limit : error.rel_l2_limit) = check::limit(quantity, dtype);
  if (quantity != check::Quantity::lse && rounded_max >= 0) error.max_limit = 2 * rounded_max;
  error.pass = check::why_not(quantity, dtype, errors, rounded_max).empty();
  return error;
}

check::Inputs forward_only(check::Inputs inputs, bool gradients) {
  if (!gradients) inputs.dout.reset();
  return inputs;
}

Checked check_full(const check::Problem& p, const CallShape& shape, const Inputs& f32, const Outputs& actual) {
  const check::Inputs inputs =
      forward_only(views(f32, p, DType::f32), !actual.dq.empty() || !actual.dk.empty());
  const check::Results expected = check::oracle(p, inputs);
  const check::Results rounded = check::oracle_rounded(p, inputs, shape.dtype);
  Checked checked{.against = "float64 over every row", .errors = {}};
  for (const Column& column : columns(p, shape.dtype, actual, expected, &rounded)) {
    const double rounded_max = column.rounded ? check::compare(*column.rounded, *column.expected).max : -1;
    checked.errors.push_back(judge(column.name, column.quantity, shape.dtype,
                                   check::compare(column.actual, *column.expected), rounded_max));
    judge_rows(checked.errors.back(), column, shape.dtype);
  }
  return checked;
}

/// The same documents cut short, over the first tokens, as many as the budget allows: small enough to run twice
/// on the host, and with the rows where the largest values, and so the largest rounding errors, are (few keys
/// share the weight).
check::Problem prefixes(const check::Problem& p) {
  double budget = kPrefixBudget * cores();
  check::Problem out = p;
  out.cu_q = out.cu_k = {0};
  const std::int64_t documents = static_cast<std::int64_t>(p.cu_q.size()) - 1;
  const double pairs = budget / cost(p, 1) / static_cast<double>(std::clamp<std::int64_t>(documents, 1, 16));
  const std::int64_t longest = std::max<std::int64_t>(16, static_cast<std::int64_t>(std::sqrt(2 * pairs)));
  for (std::size_t i = 0; i + 1 < p.cu_q.size() && budget > 0; ++i) {
    const std::int64_t length = std::min({longest, p.cu_q[i + 1] - p.cu_q[i], p.cu_k[i + 1] - p.cu_k[i]});
    out.cu_q.push_back(out.cu_q.back() + length);
    budget -= cost(p, static_cast<double>(length * (length + 1)) / 2);
  }
  out.cu_k = out.cu_q;
  out.rows = out.key_rows = out.cu_q.back();
  return out;
}

std::vector<std::int64_t> sample_rows(const std::vector<std::int64_t>& cu, int count, std::uint64_t seed) {
  std::vector<std::int64_t> rows;
  if (cu.back() == 0) return rows;
  std::mt19937_64 engine(seed);
  for (int i = 0; i < count; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(cu.back()));
    // Every third one is the last row of its document, where a tile is most likely to be cut wrong.
    rows.push_back(i % 3 == 0 ? *std::upper_bound(cu.begin(), cu.end(), row) - 1 : row);
  }
  return rows;
}

/// Rows of a packed tensor, in the order sampled.
template <class Element>
std::vector<Element> gather(const std::vector<Element>& whole, const std::vector<std::int64_t>& rows,
                            std::size_t width) {
  std::vector<Element> part;
  part.reserve(rows.size() * width);
  for (const std::int64_t row : rows) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * width);
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return part;
}

Outputs gather(const Outputs& whole, const check::Problem& p, DType dtype, const check::Samples& samples) {
  const auto width = [&](int heads, int dim) { return static_cast<std::size_t>(heads * dim) * size_of(dtype); };
  Outputs part;
  part.out = gather(whole.out, samples.rows, width(p.heads_q, p.head_dim_v));
  for (int head = 0; head < p.heads_q; ++head) {
    for (const std::int64_t row : samples.rows) {
      part.lse.push_back(whole.lse[static_cast<std::size_t>(head * p.rows + row)]);
    }
  }
  if (whole.dq.empty() && whole.dk.empty()) return part;
  part.dq = gather(whole.dq, samples.rows, width(p.heads_q, p.head_dim));
  part.dk = gather(whole.dk, samples.key_rows, width(p.heads_kv, p.head_dim));
  part.dv = gather(whole.dv, samples.key_rows, width(p.heads_kv, p.head_dim_v));
  return part;
}

Checked check_sampled(const check::Problem& p, const CallShape& shape, const Inputs& f32, const Outputs& actual,
                      const TrustedRun& trusted_run) {
  const bool gradients = !actual.dq.empty() || !actual.dk.empty();
  const check::Inputs inputs = forward_only(views(f32, p, DType::f32), gradients);
  const Outputs trusted = trusted_run(f32);

  const check::Problem prefix = prefixes(p);
  check::Inputs head = inputs;
  head.q.tokens = head.k.tokens = head.v.tokens = prefix.rows;
  if (head.dout) head.dout->tokens = prefix.rows;
  const check::Results head_expected = check::oracle(prefix, head);
  const check::Results head_rounded = check::oracle_rounded(prefix, head, shape.dtype);
  const auto rounded_max = [&](std::vector<double> check::Results::*member) {
    return check::compare(head_rounded.*member, head_expected.*member).max;
  };

  // Everything against the trusted run.
  const auto doubles = [&](const std::vector<std::byte>& bytes, std::int64_t rows, int heads, int dim) {
    return check::to_doubles(ConstTensorView::packed(bytes.data(), DType::f32, rows, heads, dim));
  };
  check::Results expected;
  expected.out = doubles(trusted.out, p.rows, p.heads_q, p.head_dim_v);
  expected.lse.assign(trusted.lse.begin(), trusted.lse.end());
  std::vector<double> limits{rounded_max(&check::Results::out), -1};
  if (gradients) {
    expected.dq = doubles(trusted.dq, p.rows, p.heads_q, p.head_dim);
    expected.dk = doubles(trusted.dk, p.key_rows, p.heads_kv, p.head_dim);
    expected.dv = doubles(trusted.dv, p.key_rows, p.heads_kv, p.head_dim_v);
    for (auto member : {&check::Results::dq, &check::Results::dk, &check::Results::dv}) {
      limits.push_back(rounded_max(member));
    }
  }
  Checked checked;
  for (const Column& column : columns(p, shape.dtype, actual, expected, nullptr)) {
    checked.errors.push_back(judge(column.name, column.quantity, shape.dtype,
                                   check::compare(column.actual, *column.expected),
                                   limits[checked.errors.size()]));
    // How far rounding takes one row of a gradient only a rounded run can say.
    if (column.quantity != check::Quantity::gradient) judge_rows(checked.errors.back(), column, shape.dtype);
  }

  // Sampled rows of both runs against float64. The worse figure of a tensor is the one reported.
  const check::Samples samples{sample_rows(p.cu_q, kSampledRows, 1), sample_rows(p.cu_k, kSampledKeys, 2)};
  const check::Trusted source{
      ConstTensorView::packed(trusted.out.data(), DType::f32, p.rows, p.heads_q, p.head_dim_v),
      ConstLseView::packed(trusted.lse.data(), p.heads_q, p.rows)};
  const check::Results rows = check::oracle_rows(p, inputs, samples, source);
  check::Problem sampled = p;
  sampled.rows = static_cast<std::int64_t>(samples.rows.size());
  sampled.key_rows = static_cast<std::int64_t>(samples.key_rows.size());
  const auto own = columns(sampled, shape.dtype, gather(actual, p, shape.dtype, samples), rows, nullptr);
  const auto reference = columns(sampled, DType::f32, gather(trusted, p, DType::f32, samples), rows, nullptr);
  for (std::size_t i = 0; i < checked.errors.size(); ++i) {
    TensorError& error = checked.errors[i];
    const TensorError here = judge(own[i].name, own[i].quantity, shape.dtype,
                                   check::compare(own[i].actual, *own[i].expected), limits[i]);
    const check::Errors trust = check::compare(reference[i].actual, *reference[i].expected);
    error.max = std::max(error.max, here.max);
    error.rel_l2 = std::max(error.rel_l2, here.rel_l2);
    error.pass = error.pass && here.pass && check::why_not(own[i].quantity, DType::f32, trust).empty();
  }
  checked.against =
      fmt::format("an f32 run over every row, itself and this one also float64 on {} rows and {} keys",
                  samples.rows.size(), samples.key_rows.size());
  return checked;
}

}  // namespace

Checked check_numbers(const check::Problem& problem, const CallShape& shape, const Inputs& inputs,
                      const Outputs& actual, OracleMode mode, const TrustedRun& trusted) {
  // f32 holds every value of the 16-bit types, and the host reads it several times faster.
  const Inputs f32 = to_f32(inputs, shape.dtype);
  if (mode == OracleMode::automatic) {
    const bool large = cost(problem, visible_pairs(problem)) > kFullBudget * cores();
    mode = large ? OracleMode::sampled : OracleMode::full;
  }
  return mode == OracleMode::full ? check_full(problem, shape, f32, actual)
                                  : check_sampled(problem, shape, f32, actual, trusted);
}

}  // namespace bdcp::bench
