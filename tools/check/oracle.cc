#include "check/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/parallel.h"
#include "check/numbers.h"

namespace bdcp::check {
namespace {

using Index = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();

// Philox4x32-10 (Salmon et al. 2011): the first word of the output.
std::uint32_t philox(std::array<std::uint32_t, 4> c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c[0];
}

// Mathematics of one element type of the sums: double, or float for the rounded f32 run.
template <class Real>
class Run {
 public:
  Run(const Problem& problem, const Inputs& inputs, std::optional<DType> rounding)
      : p_(problem), in_(inputs), rounding_(rounding), scale_(static_cast<Real>(problem.scale)) {}

  // The document that holds query row (or key row) `row`, or -1.
  static Index document_of(const std::vector<Index>& cu, Index row) {
    const auto it = std::upper_bound(cu.begin(), cu.end(), row);
    return it == cu.end() ? -1 : it - cu.begin() - 1;
  }
  Index keys_end(Index doc, Index row) const {  // first invisible key row
    const Index lag = p_.cu_q[doc + 1] - row - 1;
    return std::max(p_.cu_k[doc], p_.cu_k[doc + 1] - lag);
  }

  Real dot(ConstTensorView a, Index ta, Index ha, ConstTensorView b, Index tb, Index hb) const {
    Real sum = 0;
    for (Index d = 0; d < a.dim; ++d)
      sum += static_cast<Real>(at(a, ta, ha, d)) * static_cast<Real>(at(b, tb, hb, d));
    return sum;
  }
  static double at(ConstTensorView view, Index t, Index h, Index d) {
    return load(view.data, view.dtype, t * view.token_stride + h * view.head_stride + d);
  }
  Real round(Real value) const {
    return rounding_ ? static_cast<Real>(round_to(*rounding_, static_cast<double>(value))) : value;
  }
  Index kv_head(Index head) const { return head / (p_.heads_q / p_.heads_kv); }

  // Factor of dropout at one pair: 1 without it, 0 or 1 / (1 - p) with it.
  Real kept(Index row, Index key, Index head) const {
    if (p_.dropout_p == 0) return 1;
    const std::uint32_t word =
        philox({static_cast<std::uint32_t>(p_.dropout.offset), static_cast<std::uint32_t>(row),
                static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(head)},
               static_cast<std::uint32_t>(p_.dropout.seed), static_cast<std::uint32_t>(p_.dropout.seed >> 32));
    return word < p_.dropout_p * 4294967296.0 ? Real(0) : static_cast<Real>(1.0 / (1.0 - p_.dropout_p));
  }

  // O of one row into out[dim_v]; returns its LSE.
  double forward(Index row, Index head, double* out) const {
    std::fill(out, out + p_.head_dim_v, 0.0);
    const Index doc = document_of(p_.cu_q, row);
    if (doc < 0) return -kInf;
    const Index begin = p_.cu_k[doc], end = keys_end(doc, row);
    if (end == begin) return -kInf;
    std::vector<Real> p(static_cast<std::size_t>(end - begin));
    Real top = -std::numeric_limits<Real>::infinity();
    bool nan = false;
    for (Index j = begin; j < end; ++j) {
      const Real s = scale_ * dot(in_.q, row, head, in_.k, j, kv_head(head));
      p[j - begin] = s;
      nan = nan || std::isnan(s);
      top = std::max(top, s);
    }
    Real sum = 0;
    for (Real& x : p) sum += x = std::exp(x - top);
    std::vector<Real> acc(static_cast<std::size_t>(p_.head_dim_v), Real(0));
    for (Index j = begin; j < end; ++j) {
      const Real weight = round(p[j - begin]) * kept(row, j, head);
      for (Index d = 0; d < p_.head_dim_v; ++d)
        acc[d] += weight * static_cast<Real>(at(in_.v, j, kv_head(head), d));
    }
    for (Index d = 0; d < p_.head_dim_v; ++d) out[d] = static_cast<double>(round(acc[d] / sum));
    if (nan) return std::numeric_limits<double>::quiet_NaN();
    const double lse = static_cast<double>(top) + std::log(static_cast<double>(sum));
    return rounding_ ? static_cast<double>(static_cast<float>(lse)) : lse;
  }

  // P (with dropout's factor) and dS of one visible pair.
  struct Pair {
    Real p, ds;
  };
  Pair pair(Index row, Index key, Index head, double lse, Real delta) const {
    const Real s = scale_ * dot(in_.q, row, head, in_.k, key, kv_head(head));
    const Real p = std::exp(s - static_cast<Real>(lse));
    const Real z = kept(row, key, head);
    const Real dp = z * dot(*in_.dout, row, head, in_.v, key, kv_head(head));
    return {round(p) * z, round(p * (dp - delta))};
  }

  void dq(Index row, Index head, double lse, Real delta, double* dq) const {
    std::fill(dq, dq + p_.head_dim, 0.0);
    const Index doc = document_of(p_.cu_q, row);
    if (doc < 0) return;
    std::vector<Real> acc(static_cast<std::size_t>(p_.head_dim), Real(0));
    for (Index j = p_.cu_k[doc], end = keys_end(doc, row); j < end; ++j) {
      const Real ds = pair(row, j, head, lse, delta).ds;
      for (Index d = 0; d < p_.head_dim; ++d) acc[d] += ds * static_cast<Real>(at(in_.k, j, kv_head(head), d));
    }
    for (Index d = 0; d < p_.head_dim; ++d) dq[d] = static_cast<double>(round(acc[d] * scale_));
  }

  // First query row that sees `key`, for a key of document `doc`.
  Index first_row(Index doc, Index key) const {
    const Index lag = p_.cu_k[doc + 1] - key - 1;
    return std::max(p_.cu_q[doc], p_.cu_q[doc + 1] - lag - 1);
  }

  // Adds one (row, head) to the dK and dV sums of a key.
  void add_dkv(Index row, Index key, Index head, double lse, Real delta, Real* dk, Real* dv) const {
    const Pair x = pair(row, key, head, lse, delta);
    for (Index d = 0; d < p_.head_dim; ++d) dk[d] += x.ds * static_cast<Real>(at(in_.q, row, head, d));
    for (Index d = 0; d < p_.head_dim_v; ++d) dv[d] += x.p * static_cast<Real>(at(*in_.dout, row, head, d));
  }

  // lse and delta of a row come through `row_state(row, head) -> {lse, delta}`.
  template <class RowState>
  void dkv(Index key, Index kv, const RowState& row_state, double* dk, double* dv) const {
    std::fill(dk, dk + p_.head_dim, 0.0);
    std::fill(dv, dv + p_.head_dim_v, 0.0);
    const Index doc = document_of(p_.cu_k, key);
    if (doc < 0) return;
    std::vector<Real> k_acc(static_cast<std::size_t>(p_.head_dim), Real(0));
    std::vector<Real> v_acc(static_cast<std::size_t>(p_.head_dim_v), Real(0));
    const Index ratio = p_.heads_q / p_.heads_kv;
    for (Index head = kv * ratio; head < (kv + 1) * ratio; ++head)
      for (Index i = first_row(doc, key); i < p_.cu_q[doc + 1]; ++i) {
        const auto [lse, delta] = row_state(i, head);
        add_dkv(i, key, head, lse, delta, k_acc.data(), v_acc.data());
      }
    for (Index d = 0; d < p_.head_dim; ++d) dk[d] = static_cast<double>(round(k_acc[d] * scale_));
    for (Index d = 0; d < p_.head_dim_v; ++d) dv[d] = static_cast<double>(round(v_acc[d]));
  }

  Real delta(Index row, Index head, const double* out) const {
    Real sum = 0;
    for (Index d = 0; d < p_.head_dim_v; ++d)
      sum += static_cast<Real>(at(*in_.dout, row, head, d)) * static_cast<Real>(out[d]);
    return sum;
  }

  Results all() const {
    Results r;
    const Index h = p_.heads_q, hk = p_.heads_kv, dqk = p_.head_dim, dv = p_.head_dim_v;
    r.out.resize(p_.rows * h * dv);
    r.lse.resize(h * p_.rows);
    std::vector<Real> deltas(in_.dout ? h * p_.rows : 0);
    if (in_.dout) {
      r.dq.resize(p_.rows * h * dqk);
      r.dk.resize(p_.key_rows * hk * dqk);
      r.dv.resize(p_.key_rows * hk * dv);
    }
    parallel_for(p_.rows, [&](Index row) {
      for (Index head = 0; head < h; ++head) {
        double* out = &r.out[(row * h + head) * dv];
        const double lse = r.lse[head * p_.rows + row] = forward(row, head, out);
        if (!in_.dout) continue;
        // A row of no document must not be touched: it may hold NaN.
        const Real d = deltas[head * p_.rows + row] =
            document_of(p_.cu_q, row) < 0 ? Real(0) : delta(row, head, out);
        dq(row, head, lse, d, &r.dq[(row * h + head) * dqk]);
      }
    });
    if (!in_.dout) return r;
    const auto state = [&](Index row, Index head) {
      return std::pair{r.lse[head * p_.rows + row], deltas[head * p_.rows + row]};
    };
    parallel_for(p_.key_rows, [&](Index key) {
      for (Index kv = 0; kv < hk; ++kv)
        dkv(key, kv, state, &r.dk[(key * hk + kv) * dqk], &r.dv[(key * hk + kv) * dv]);
    });
    return r;
  }

 private:
  const Problem& p_;
  const Inputs& in_;
  std::optional<DType> rounding_;
  Real scale_;
};

void validate(const Problem& p, const Inputs& in) {
  const auto matches = [](const ConstTensorView& view, Index tokens, Index heads, Index dim) {
    return view.tokens >= tokens && view.heads == heads && view.dim == dim;
  };
  require(p.cu_q.size() == p.cu_k.size() && !p.cu_q.empty() && p.cu_q.back() <= p.rows &&
              p.cu_k.back() <= p.key_rows && p.heads_kv > 0 && p.heads_q % p.heads_kv == 0,
          ErrorCode::invalid_argument, "oracle: the problem's offsets, rows or heads do not fit together");
  require(matches(in.q, p.rows, p.heads_q, p.head_dim) && matches(in.k, p.key_rows, p.heads_kv, p.head_dim) &&
              matches(in.v, p.key_rows, p.heads_kv, p.head_dim_v) &&
              (!in.dout || matches(*in.dout, p.rows, p.heads_q, p.head_dim_v)),
          ErrorCode::invalid_argument, "oracle: a tensor does not have the problem's tokens, heads or dims");
}

}  // namespace

Problem Problem::from(const CallShape& shape, std::vector<std::int64_t> cu_q, std::vector<std::int64_t> cu_k,
                      std::int64_t rows, std::int64_t key_rows) {
  Problem p;
  p.cu_q = std::move(cu_q);
  p.cu_k = std::move(cu_k);
  p.rows = rows;
  p.key_rows = key_rows;
  p.heads_q = shape.heads_q;
  p.heads_kv = shape.heads_kv;
  p.head_dim = shape.head_dim;
  p.head_dim_v = shape.dim_v();
  p.scale = shape.softmax_scale();
  p.dropout_p = shape.dropout_p;
  return p;
}

Problem Problem::from(const CallShape& shape, const DocLayout& layout) {
  const auto q = layout.cu_q(), k = layout.cu_k();
  return from(shape, {q.begin(), q.end()}, {k.begin(), k.end()}, layout.padded_tokens(),
              layout.square() ? layout.padded_tokens() : layout.real_keys());
}

Results oracle(const Problem& problem, const Inputs& inputs) {
  validate(problem, inputs);
  return Run<double>(problem, inputs, std::nullopt).all();
}

Results oracle_rounded(const Problem& problem, const Inputs& inputs, DType dtype) {
  validate(problem, inputs);
  if (dtype == DType::f32) return Run<float>(problem, inputs, dtype).all();
  return Run<double>(problem, inputs, dtype).all();
}

Results oracle_rows(const Problem& problem, const Inputs& inputs, const Samples& samples,
                    std::optional<Trusted> trusted) {
  validate(problem, inputs);
  const Run<double> run(problem, inputs, std::nullopt);
  const Index h = problem.heads_q, hk = problem.heads_kv, dqk = problem.head_dim, dv = problem.head_dim_v;
  const Index n = static_cast<Index>(samples.rows.size()), m = static_cast<Index>(samples.key_rows.size());
  for (const Index row : samples.rows)
    require(row >= 0 && row < problem.rows, ErrorCode::invalid_argument,
            [&] { return fmt::format("oracle_rows: row {} of {}", row, problem.rows); });
  for (const Index key : samples.key_rows)
    require(key >= 0 && key < problem.key_rows, ErrorCode::invalid_argument,
            [&] { return fmt::format("oracle_rows: key row {} of {}", key, problem.key_rows); });
  Results r;
  r.out.resize(n * h * dv);
  r.lse.resize(h * n);
  if (inputs.dout) r.dq.resize(n * h * dqk);
  parallel_for(n * h, [&](Index i) {
    const Index s = i / h, head = i % h, row = samples.rows[s];
    double* out = &r.out[i * dv];
    const double lse = r.lse[head * n + s] = run.forward(row, head, out);
    if (!inputs.dout || Run<double>::document_of(problem.cu_q, row) < 0) return;
    run.dq(row, head, lse, run.delta(row, head, out), &r.dq[i * dqk]);
  });
  if (!inputs.dout) return r;
  r.dk.resize(m * hk * dqk);
  r.dv.resize(m * hk * dv);
  const auto state = [&](Index row, Index head) {
    std::vector<double> out(static_cast<std::size_t>(dv));
    double lse;
    if (trusted) {
      lse = trusted->lse.data[head * trusted->lse.head_stride + row];
      for (Index d = 0; d < dv; ++d) out[d] = Run<double>::at(trusted->out, row, head, d);
    } else {
      lse = run.forward(row, head, out.data());
    }
    return std::pair{lse, run.delta(row, head, out.data())};
  };
  parallel_for(m * hk, [&](Index i) {
    run.dkv(samples.key_rows[i / hk], i % hk, state, &r.dk[i * dqk], &r.dv[i * dv]);
  });
  return r;
}

}  // namespace bdcp::check
