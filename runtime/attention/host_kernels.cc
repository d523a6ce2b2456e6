#include "attention/host_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/host_numbers.h"
#include "attention/philox.h"

namespace bdcp::attention {
namespace {

using Index = std::int64_t;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kLanes = 8;  // columns of a register tile; buffers are padded to it with zeros

int padded(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// C[M][N] += A[M][K] B[K][N]; N is padded. Each element's sum runs over ascending k from zero, whatever M is,
// so that results do not depend on how rows are grouped.
template <int M>
void multiply_rows(int n, int k, const double* a, int lda, const double* b, int ldb, double* c, int ldc) {
  for (int j = 0; j < n; j += kLanes) {
    double acc[M][kLanes] = {};
    for (int x = 0; x < k; ++x) {
      const double* row = b + static_cast<Index>(x) * ldb + j;
      for (int r = 0; r < M; ++r) {
        const double factor = a[static_cast<Index>(r) * lda + x];
        for (int l = 0; l < kLanes; ++l) acc[r][l] += factor * row[l];
      }
    }
    for (int r = 0; r < M; ++r)
      for (int l = 0; l < kLanes; ++l) c[static_cast<Index>(r) * ldc + j + l] += acc[r][l];
  }
}

void multiply(int m, int n, int k, const double* a, int lda, const double* b, int ldb, double* c, int ldc) {
  int r = 0;
  for (; r + 2 <= m; r += 2)
    multiply_rows<2>(n, k, a + static_cast<Index>(r) * lda, lda, b, ldb, c + static_cast<Index>(r) * ldc, ldc);
  if (r < m)
    multiply_rows<1>(n, k, a + static_cast<Index>(r) * lda, lda, b, ldb, c + static_cast<Index>(r) * ldc, ldc);
}

// Where key position p lives.
struct KeySource {
  ConstTensorView local, remote;
  Index remote_len;
  void load(Index position, int head, int dim, double* out, int stride) const {
    const bool far = position < remote_len;
    const ConstTensorView& view = far ? remote : local;
    const Index row = far ? position : position - remote_len;
    load_row(view.data, view.dtype, row * view.token_stride + head * view.head_stride, dim, out, stride);
  }
};

// `count` rows from load(i, out, stride) as [count][padded(dim)].
template <class Load>
void load_block(int count, int dim, const Load& load, std::vector<double>& out) {
  out.assign(static_cast<std::size_t>(count) * padded(dim), 0.0);
  for (int i = 0; i < count; ++i) load(i, &out[static_cast<std::size_t>(i) * padded(dim)], 1);
}
// The same transposed: [dim][kHostBlock], zeros past count.
template <class Load>
void load_transposed(int count, int dim, const Load& load, std::vector<double>& out) {
  out.assign(static_cast<std::size_t>(dim) * kHostBlock, 0.0);
  for (int i = 0; i < count; ++i) load(i, &out[i], kHostBlock);
}

auto row_loader(const ConstTensorView& view, Index first, int head, int dim) {
  return [&view, first, head, dim](int i, double* out, int stride) {
    load_row(view.data, view.dtype, (first + i) * view.token_stride + head * view.head_stride, dim, out,
             stride);
  };
}
auto key_loader(const KeySource& source, Index first, int head, int dim) {
  return [&source, first, head, dim](int i, double* out, int stride) {
    source.load(first + i, head, dim, out, stride);
  };
}

struct Dropout {
  double p;
  std::uint32_t threshold;
  DropoutState state;
  Index q0, k0;
  Dropout(const HostProblem& problem, const DropoutState& dropout, Index q_offset, Index k_offset)
      : p(problem.dropout_p), threshold(dropout_threshold(p)), state(dropout), q0(q_offset), k0(k_offset) {}
  // 0 or 1 / (1 - p).
  double factor(Index row, Index position, int head) const {
    const std::uint32_t word =
        philox(state.seed, static_cast<std::uint32_t>(state.offset), static_cast<std::uint32_t>(q0 + row),
               static_cast<std::uint32_t>(k0 + position), static_cast<std::uint32_t>(head));
    return word < threshold ? 0.0 : 1.0 / (1.0 - p);
  }
};

// Clamped count of visible keys inside a block that starts at `first`.
int visible_in(const plan::Segment& segment, Index row, Index first, int count) {
  return static_cast<int>(std::clamp<Index>(HostProblem::visible(segment, row) - first, 0, count));
}

// Sums of rows whose visible prefix differs: never touches what a row must not see, since 0 * NaN is NaN.
template <class Visible>
void multiply_visible(int m, int n, int count, const Visible& visible, const double* a, const double* b,
                      int ldb, double* c, int ldc) {
  int r = 0;
  while (r < m && visible(r) < count) {
    multiply(1, n, visible(r), a + static_cast<Index>(r) * kHostBlock, kHostBlock, b, ldb,
             c + static_cast<Index>(r) * ldc, ldc);
    ++r;
  }
  multiply(m - r, n, count, a + static_cast<Index>(r) * kHostBlock, kHostBlock, b, ldb,
           c + static_cast<Index>(r) * ldc, ldc);
}

void zero_row_of(const TensorView& view, Index row, int head) {
  zero_row(view.data, view.dtype, row * view.token_stride + head * view.head_stride,
           static_cast<int>(view.dim));
}

}  // namespace

void host_forward_block(const HostProblem& problem, const ForwardCall& call, const plan::Segment& segment,
                        Index begin, Index end, int head, HostScratch& scratch) {
  const int m = static_cast<int>(end - begin), d = problem.head_dim, dv = problem.head_dim_v, ldv = padded(dv);
  const int kv = head / problem.ratio;
  const KeySource k{call.k, call.remote_k, problem.remote_len}, v{call.v, call.remote_v, problem.remote_len};
  const Dropout dropout(problem, call.dropout, call.global_q_offset, call.global_k_offset);
  const Index first_row = segment.q_begin + begin;

  load_block(m, d, row_loader(call.q, first_row, head, d), scratch.rows);
  scratch.acc.assign(static_cast<std::size_t>(m) * ldv, 0.0);
  scratch.state.assign(static_cast<std::size_t>(m) * 2, 0.0);
  double* top = scratch.state.data();
  double* sum = top + m;
  std::fill(top, top + m, -kInf);

  const Index last = HostProblem::visible(segment, end - 1);
  for (Index first = 0; first < last; first += kHostBlock) {
    const int count = static_cast<int>(std::min<Index>(kHostBlock, last - first));
    load_transposed(count, d, key_loader(k, segment.k_begin + first, kv, d), scratch.keys);
    load_block(count, dv, key_loader(v, segment.k_begin + first, kv, dv), scratch.keys2);
    scratch.scores.assign(static_cast<std::size_t>(m) * kHostBlock, 0.0);
    multiply(m, padded(count), d, scratch.rows.data(), padded(d), scratch.keys.data(), kHostBlock,
             scratch.scores.data(), kHostBlock);
    for (int r = 0; r < m; ++r) {
      const int seen = visible_in(segment, begin + r, first, count);
      if (seen == 0) continue;
      double* s = &scratch.scores[static_cast<std::size_t>(r) * kHostBlock];
      double new_top = top[r];
      for (int j = 0; j < seen; ++j) new_top = std::max(new_top, s[j] *= problem.scale);
      // Nothing but -inf so far: every weight is 0 (or NaN, which must stay).
      const double base = new_top == -kInf ? 0.0 : new_top;
      const double alpha = top[r] == -kInf ? 0.0 : std::exp(top[r] - base);
      if (alpha != 1.0) {
        sum[r] *= alpha;
        for (int c = 0; c < dv; ++c) scratch.acc[static_cast<std::size_t>(r) * ldv + c] *= alpha;
      }
      top[r] = new_top;
      for (int j = 0; j < seen; ++j) sum[r] += s[j] = std::exp(s[j] - base);
      if (problem.dropout_p > 0)
        for (int j = 0; j < seen; ++j) s[j] *= dropout.factor(first_row + r, segment.k_begin + first + j, head);
    }
    multiply_visible(
        m, ldv, count, [&](int r) { return visible_in(segment, begin + r, first, count); },
        scratch.scores.data(), scratch.keys2.data(), ldv, scratch.acc.data(), ldv);
  }
  for (int r = 0; r < m; ++r) {
    const Index row = first_row + r;
    const bool keys = HostProblem::visible(segment, begin + r) > 0;
    if (keys)
      store_row(call.out.data, call.out.dtype, row * call.out.token_stride + head * call.out.head_stride, dv,
                &scratch.acc[static_cast<std::size_t>(r) * ldv], 1.0 / sum[r]);
    else
      zero_row_of(call.out, row, head);
    if (call.lse.data)
      call.lse.data[head * call.lse.head_stride + row] =
          keys ? static_cast<float>(top[r] + std::log(sum[r])) : -std::numeric_limits<float>::infinity();
  }
}

void host_dq_block(const HostProblem& problem, const BackwardCall& call, const plan::Segment& segment,
                   Index begin, Index end, int head, HostScratch& scratch) {
  const int m = static_cast<int>(end - begin), d = problem.head_dim, dv = problem.head_dim_v;
  const int ld = padded(d), ldv = padded(dv), kv = head / problem.ratio;
  const KeySource k{call.k, call.remote_k, problem.remote_len}, v{call.v, call.remote_v, problem.remote_len};
  const Dropout dropout(problem, call.dropout, call.global_q_offset, call.global_k_offset);
  const Index first_row = segment.q_begin + begin;

  load_block(m, d, row_loader(call.q, first_row, head, d), scratch.rows);
  load_block(m, dv, row_loader(call.dout, first_row, head, dv), scratch.rows2);
  load_block(m, dv, row_loader(call.out, first_row, head, dv), scratch.acc2);
  scratch.acc.assign(static_cast<std::size_t>(m) * ld, 0.0);
  scratch.state.assign(static_cast<std::size_t>(m), 0.0);  // delta = rowsum(dO * O)
  for (int r = 0; r < m; ++r)
    for (int c = 0; c < dv; ++c)
      scratch.state[r] += scratch.rows2[static_cast<std::size_t>(r) * ldv + c] *
                          scratch.acc2[static_cast<std::size_t>(r) * ldv + c];

  const Index last = HostProblem::visible(segment, end - 1);
  for (Index first = 0; first < last; first += kHostBlock) {
    const int count = static_cast<int>(std::min<Index>(kHostBlock, last - first));
    const auto seen = [&](int r) { return visible_in(segment, begin + r, first, count); };
    load_transposed(count, d, key_loader(k, segment.k_begin + first, kv, d), scratch.keys);
    scratch.scores.assign(static_cast<std::size_t>(m) * kHostBlock, 0.0);
    multiply(m, padded(count), d, scratch.rows.data(), ld, scratch.keys.data(), kHostBlock,
             scratch.scores.data(), kHostBlock);
    load_transposed(count, dv, key_loader(v, segment.k_begin + first, kv, dv), scratch.keys);
    scratch.weights.assign(static_cast<std::size_t>(m) * kHostBlock, 0.0);
    multiply(m, padded(count), dv, scratch.rows2.data(), ldv, scratch.keys.data(), kHostBlock,
             scratch.weights.data(), kHostBlock);
    for (int r = 0; r < m; ++r) {
      const double* s = &scratch.scores[static_cast<std::size_t>(r) * kHostBlock];
      double* w = &scratch.weights[static_cast<std::size_t>(r) * kHostBlock];
      const double lse = call.lse.data[head * call.lse.head_stride + first_row + r];
      for (int j = 0, n = seen(r); j < n; ++j) {
        if (problem.dropout_p > 0) w[j] *= dropout.factor(first_row + r, segment.k_begin + first + j, head);
        w[j] = std::exp(s[j] * problem.scale - lse) * (w[j] - scratch.state[r]);
      }
    }
    load_block(count, d, key_loader(k, segment.k_begin + first, kv, d), scratch.keys2);
    multiply_visible(m, ld, count, seen, scratch.weights.data(), scratch.keys2.data(), ld, scratch.acc.data(),
                     ld);
  }
  for (int r = 0; r < m; ++r) {
    const Index row = first_row + r;
    if (HostProblem::visible(segment, begin + r) > 0)
      store_row(call.dq.data, call.dq.dtype, row * call.dq.token_stride + head * call.dq.head_stride, d,
                &scratch.acc[static_cast<std::size_t>(r) * ld], problem.scale);
    else
      zero_row_of(call.dq, row, head);
  }
}

namespace {

// Destination of a key position's gradients: remote partial, shared partial, or final.
struct KeyTarget {
  const TensorView* dk;
  const TensorView* dv;
  Index row;
};
KeyTarget key_target(const HostProblem& problem, const BackwardCall& call, Index position) {
  if (position < problem.remote_len) return {&call.remote_dk, &call.remote_dv, position};
  const Index row = position - problem.remote_len;
  if (row >= problem.shared_begin) return {&call.shared_dk, &call.shared_dv, row - problem.shared_begin};
  return {&call.dk, &call.dv, row};
}

}  // namespace

void host_dkv_block(const HostProblem& problem, const BackwardCall& call, const plan::Segment& segment,
                    Index begin, Index end, int kv_head, HostScratch& scratch) {
  const int m = static_cast<int>(end - begin), d = problem.head_dim, dv = problem.head_dim_v;
  const int ld = padded(d), ldv = padded(dv);
  const KeySource k{call.k, call.remote_k, problem.remote_len}, v{call.v, call.remote_v, problem.remote_len};
  const Dropout dropout(problem, call.dropout, call.global_q_offset, call.global_k_offset);

  load_block(m, d, key_loader(k, segment.k_begin + begin, kv_head, d), scratch.keys);
  load_block(m, dv, key_loader(v, segment.k_begin + begin, kv_head, dv), scratch.keys2);
  scratch.acc.assign(static_cast<std::size_t>(m) * ld, 0.0);
  scratch.acc2.assign(static_cast<std::size_t>(m) * ldv, 0.0);

  // Row i sees key j iff i >= j + shift.
  const Index shift = segment.rows() - segment.keys();
  const Index rows_begin = std::max<Index>(0, begin + shift) / kHostBlock * kHostBlock;
  for (int head = kv_head * problem.ratio; head < (kv_head + 1) * problem.ratio; ++head) {
    for (Index first = rows_begin; first < segment.rows(); first += kHostBlock) {
      const int count = static_cast<int>(std::min<Index>(kHostBlock, segment.rows() - first));
      const Index first_row = segment.q_begin + first;
      // First row of the block that sees key `begin + r`.
      const auto from = [&](int r) {
        return static_cast<int>(std::clamp<Index>(begin + r + shift - first, 0, count));
      };
      scratch.state.assign(kHostBlock, 0.0);  // delta
      load_block(count, dv, row_loader(call.dout, first_row, head, dv), scratch.rows2);
      load_block(count, dv, row_loader(call.out, first_row, head, dv), scratch.rows);
      for (int i = 0; i < count; ++i)
        for (int c = 0; c < dv; ++c)
          scratch.state[i] += scratch.rows2[static_cast<std::size_t>(i) * ldv + c] *
                              scratch.rows[static_cast<std::size_t>(i) * ldv + c];
      // S^T and dP^T: [keys][rows].
      load_transposed(count, d, row_loader(call.q, first_row, head, d), scratch.rows);
      scratch.scores.assign(static_cast<std::size_t>(m) * kHostBlock, 0.0);
      multiply(m, padded(count), d, scratch.keys.data(), ld, scratch.rows.data(), kHostBlock,
               scratch.scores.data(), kHostBlock);
      load_transposed(count, dv, row_loader(call.dout, first_row, head, dv), scratch.rows);
      scratch.weights.assign(static_cast<std::size_t>(m) * kHostBlock, 0.0);
      multiply(m, padded(count), dv, scratch.keys2.data(), ldv, scratch.rows.data(), kHostBlock,
               scratch.weights.data(), kHostBlock);
      const float* lse = call.lse.data + head * call.lse.head_stride + first_row;
      for (int r = 0; r < m; ++r) {
        double* s = &scratch.scores[static_cast<std::size_t>(r) * kHostBlock];
        double* w = &scratch.weights[static_cast<std::size_t>(r) * kHostBlock];
        for (int i = from(r); i < count; ++i) {
          const double p = std::exp(s[i] * problem.scale - lse[i]);
          const double z =
              problem.dropout_p > 0 ? dropout.factor(first_row + i, segment.k_begin + begin + r, head) : 1.0;
          w[i] = p * (w[i] * z - scratch.state[i]);
          s[i] = p * z;
        }
      }
      load_block(count, d, row_loader(call.q, first_row, head, d), scratch.rows);
      int whole = 0;  // leading keys that every row of the block sees
      while (whole < m && from(whole) == 0) ++whole;
      multiply(whole, ldv, count, scratch.scores.data(), kHostBlock, scratch.rows2.data(), ldv,
               scratch.acc2.data(), ldv);
      multiply(whole, ld, count, scratch.weights.data(), kHostBlock, scratch.rows.data(), ld,
               scratch.acc.data(), ld);
      for (int r = whole; r < m; ++r) {
        const int i = from(r);
        const Index at = static_cast<Index>(r) * kHostBlock + i;
        multiply(1, ldv, count - i, &scratch.scores[at], kHostBlock,
                 scratch.rows2.data() + static_cast<Index>(i) * ldv, ldv,
                 &scratch.acc2[static_cast<Index>(r) * ldv], ldv);
        multiply(1, ld, count - i, &scratch.weights[at], kHostBlock,
                 scratch.rows.data() + static_cast<Index>(i) * ld, ld, &scratch.acc[static_cast<Index>(r) * ld],
                 ld);
      }
    }
  }
  for (int r = 0; r < m; ++r) {
    const KeyTarget to = key_target(problem, call, segment.k_begin + begin + r);
    store_row(to.dk->data, to.dk->dtype, to.row * to.dk->token_stride + kv_head * to.dk->head_stride, d,
              &scratch.acc[static_cast<std::size_t>(r) * ld], problem.scale);
    store_row(to.dv->data, to.dv->dtype, to.row * to.dv->token_stride + kv_head * to.dv->head_stride, dv,
              &scratch.acc2[static_cast<std::size_t>(r) * ldv], 1.0);
  }
}

void host_zero_key(const HostProblem& problem, const BackwardCall& call, Index position, int kv_head) {
  const KeyTarget to = key_target(problem, call, position);
  zero_row_of(*to.dk, to.row, kv_head);
  zero_row_of(*to.dv, to.row, kv_head);
}

}  // namespace bdcp::attention
