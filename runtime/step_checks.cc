#include "step_checks.h"

#include <fmt/format.h>

#include "base/check.h"

namespace bdcp {
namespace {

struct TensorSpec {
  const char* name;
  std::int64_t tokens, heads, dim;
  DType dtype;
};

std::optional<NotMine> mismatch(const ConstTensorView& view, const TensorSpec& want) {
  if (view.tokens != want.tokens)
    return NotMine{"tokens", fmt::format("{}.tokens is {}, the step's layout has {} on this rank", want.name,
                                         view.tokens, want.tokens)};
  if (view.heads != want.heads)
    return NotMine{"heads", fmt::format("{}.heads is {}, not {}", want.name, view.heads, want.heads)};
  if (view.dim != want.dim)
    return NotMine{"head_dim", fmt::format("{}.dim is {}, not {}", want.name, view.dim, want.dim)};
  if (view.dtype != want.dtype)
    return NotMine{"dtype", fmt::format("{}.dtype is {}, not {}", want.name, to_string(view.dtype),
                                        to_string(want.dtype))};
  if (!view.data && view.tokens > 0) return NotMine{"null", fmt::format("{}.data is null", want.name)};
  if (view.heads > 1 && view.tokens > 1 && (view.head_stride < view.dim && view.token_stride < view.dim))
    return NotMine{"strides", fmt::format("{}: token_stride {} and head_stride {} are both below dim {}",
                                          want.name, view.token_stride, view.head_stride, view.dim)};
  return std::nullopt;
}

std::optional<NotMine> mismatch_lse(const ConstLseView& lse, std::int64_t heads, std::int64_t tokens,
                                    bool required) {
  if (!lse.data) {
    if (required && tokens > 0) return NotMine{"null", "lse.data is null"};
    return std::nullopt;
  }
  if (lse.heads != heads || lse.tokens != tokens || (heads > 1 && lse.head_stride < tokens))
    return NotMine{"lse", fmt::format("lse is [{}, {}] with head_stride {}, not [{}, {}]", lse.heads,
                                      lse.tokens, lse.head_stride, heads, tokens)};
  return std::nullopt;
}

// Exact for contiguous tensors; strided ones may interleave with their inputs without sharing an element.
bool aliases(const ConstTensorView& a, const ConstTensorView& b) {
  if (!a.data || !b.data) return false;
  if (a.data == b.data) return true;
  if (!a.contiguous() || !b.contiguous()) return false;
  const auto begin = [](const ConstTensorView& t) { return reinterpret_cast<std::uintptr_t>(t.data); };
  const auto end = [&](const ConstTensorView& t) {
    return begin(t) + static_cast<std::uintptr_t>(t.tokens * t.heads * t.dim) * size_of(t.dtype);
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

// Device, shape and inputs: what forward and backward check alike. Fills `found` on success.
std::optional<NotMine> check_inputs(const Step::Impl& step, const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, int index, Stream stream,
                                    const PreparedShape** found) {
  const auto name = [](int device) {
    return device < 0 ? std::string("the host") : fmt::format("device {}", device);
  };
  if (stream.device != step.device)
    return NotMine{"device", fmt::format("the stream is on {}, the step was prepared for {}",
                                         name(stream.device), name(step.device))};
  const PreparedShape* ps = nullptr;
  if (index >= 0) {
    if (static_cast<std::size_t>(index) >= step.shapes.size())
      return NotMine{"shape", fmt::format("shape is {}, the step has {} shapes", index, step.shapes.size())};
    ps = &step.shapes[static_cast<std::size_t>(index)];
  }
  for (const PreparedShape& candidate : step.shapes) {
    if (index >= 0) break;
    const CallShape& s = candidate.shape;
    if (s.heads_q != q.heads || s.heads_kv != k.heads || s.head_dim != q.dim || s.dim_v() != v.dim ||
        s.dtype != q.dtype)
      continue;
    if (ps)
      return NotMine{"shape",
                     "two prepared shapes fit these tensors; say which by `shape`, its index in begin_step"};
    ps = &candidate;
  }
  if (!ps)
    return NotMine{"shape", fmt::format("no prepared shape has heads {}:{}, head_dim {}/{} and dtype {}",
                                        q.heads, k.heads, q.dim, v.dim, to_string(q.dtype))};
  const CallShape& s = ps->shape;
  *found = ps;
  if (auto bad = mismatch(q, {"q", step.plan.rows, s.heads_q, s.head_dim, s.dtype})) return bad;
  if (auto bad = mismatch(k, {"k", step.plan.key_rows, s.heads_kv, s.head_dim, s.dtype})) return bad;
  return mismatch(v, {"v", step.plan.key_rows, s.heads_kv, s.dim_v(), s.dtype});
}

}  // namespace

void check_alias(std::initializer_list<std::pair<const char*, ConstTensorView>> outputs,
                 std::initializer_list<std::pair<const char*, ConstTensorView>> inputs) {
  for (auto out = outputs.begin(); out != outputs.end(); ++out) {
    for (const auto& input : inputs)
      require(!aliases(out->second, input.second), ErrorCode::invalid_argument, [&] {
        return fmt::format("{} aliases {}; outputs must not alias inputs", out->first, input.first);
      });
    for (auto other = std::next(out); other != outputs.end(); ++other)
      require(!aliases(out->second, other->second), ErrorCode::invalid_argument, [&] {
        return fmt::format("{} aliases {}; outputs must not alias each other", out->first, other->first);
      });
  }
}

void check_buffer(const char* name, BufferView buffer, std::size_t need) {
  require(buffer.bytes >= need && (need == 0 || buffer.data), ErrorCode::invalid_argument, [&] {
    return fmt::format("{} has {} bytes, {} are needed (see Step::workspace)", name,
                       buffer.data ? buffer.bytes : 0, need);
  });
  require(need == 0 || reinterpret_cast<std::uintptr_t>(buffer.data) % 256 == 0, ErrorCode::invalid_argument,
          [&] { return fmt::format("{} is not aligned to 256 bytes", name); });
}

std::optional<NotMine> why_not(const Step::Impl& step, const ForwardArgs& a, Stream stream,
                               const PreparedShape** found) {
  if (auto bad = check_inputs(step, a.q, a.k, a.v, a.shape, stream, found)) return bad;
  const CallShape& s = (*found)->shape;
  if (auto bad = mismatch(a.out, {"out", step.plan.rows, s.heads_q, s.dim_v(), s.dtype})) return bad;
  return mismatch_lse(a.lse, s.heads_q, step.plan.rows, false);
}

std::optional<NotMine> why_not(const Step::Impl& step, const BackwardArgs& a, Stream stream,
                               const PreparedShape** found) {
  if (auto bad = check_inputs(step, a.q, a.k, a.v, a.shape, stream, found)) return bad;
  const CallShape& s = (*found)->shape;
  const std::int64_t rows = step.plan.rows, keys = step.plan.key_rows;
  const std::pair<ConstTensorView, TensorSpec> checks[] = {
      {a.out, {"out", rows, s.heads_q, s.dim_v(), s.dtype}},
      {a.dout, {"dout", rows, s.heads_q, s.dim_v(), s.dtype}},
      {a.dq, {"dq", rows, s.heads_q, s.head_dim, s.dtype}},
      {a.dk, {"dk", keys, s.heads_kv, s.head_dim, s.dtype}},
      {a.dv, {"dv", keys, s.heads_kv, s.dim_v(), s.dtype}},
  };
  for (const auto& [view, want] : checks)
    if (auto bad = mismatch(view, want)) return bad;
  return mismatch_lse(a.lse, s.heads_q, rows, true);
}

}  // namespace bdcp
