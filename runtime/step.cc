#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "comm/call_ledger.h"
#include "jit/kernel_info.h"
#include "step_impl.h"

namespace bdcp {
namespace {

BufferView piece(BufferView whole, std::size_t offset, std::size_t bytes) {
  return bytes ? BufferView{static_cast<std::byte*>(whole.data) + offset, bytes} : BufferView{};
}

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

// World > 1: whatever goes wrong on one rank is told to the others, so that none waits for it in vain.
template <class Body>
void collective(const Step::Impl& step, Body&& body) {
  comm::Group* group = step.comm.group().get();
  try {
    if (group) group->check();
    body();
  } catch (const Error& error) {
    ++step.services.metrics->failed_calls;
    if (!group) throw;
    group->fail(error);
    // The communicator is gone with the call, and its error says so; a lost device or process is worse and
    // stays.
    if (error.scope() != ErrorScope::device && error.scope() != ErrorScope::process) group->check();
    throw;
  } catch (const std::exception& error) {
    ++step.services.metrics->failed_calls;
    if (group) group->fail(Error(ErrorCode::internal, error.what()));
    throw;
  }
}

template <class Args>
const PreparedShape& accept(const Step::Impl& step, const char* call, const Args& args, Stream stream) {
  const PreparedShape* found = nullptr;
  if (auto bad = why_not(step, args, stream, &found)) {
    step.services.metrics->count_not_mine(bad->code);
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", call, bad->text));
  }
  return *found;
}

/// Joins the caller's stream to transfers that were started, also when something throws in between: the caller
/// may then free or reuse what they still read and write. Partials travel only where K/V does.
class Transfers {
 public:
  Transfers(comm::KvExchange& exchange, Stream stream) : exchange_(exchange), stream_(stream) {}
  ~Transfers() {
    if (!open_) return;
    try {
      exchange_.finish_forward(stream_);
    } catch (...) {  // the error that is on its way says more
    }
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  void start(const ConstTensorView& k, const ConstTensorView& v, BufferView landing) {
    exchange_.start_forward(k, v, landing, stream_);
    open_ = true;
  }
  void finish() {
    if (std::exchange(open_, false)) exchange_.finish_forward(stream_);
  }
  void start_reduce(const comm::KvExchange::Partials& partials, BufferView gradients) {
    exchange_.start_reduce(partials, gradients, stream_);
    open_ = true;
  }
  void finish_reduce(BufferView gradients, const TensorView& dk, const TensorView& dv) {
    finish();
    exchange_.finish_reduce(gradients, dk, dv, stream_);
  }

 private:
  comm::KvExchange& exchange_;
  Stream stream_;
  bool open_ = false;
};

/// Transfers are watched by events and agreed on by hosts; neither happens again when a graph is replayed.
void refuse_capture(const Step::Impl& step, Stream stream) {
  if (!step.device_handle) return;
  require(!step.device_handle->capturing(stream.handle), ErrorCode::unsupported, [&] {
    return fmt::format(
        "the stream is being captured, and communicator '{}' has {} ranks: an exchange cannot be captured in "
        "this build; allowed: world size 1",
        step.comm.name(), step.comm.size());
  });
}

void report_strides(Step::Impl& step, const ConstTensorView& k, const ConstTensorView& v) {
  const bool sends = step.decision.path == ExchangePath::allgather || !step.plan.sends.empty();
  if (!sends || !comm::KvExchange::strided(k, v) || step.strided_reported.exchange(true)) return;
  const Downgrade strided{"contiguous", "strided", "kv_strided",
                          "K/V rows are not contiguous: the exchange copies them row by row, not in one range",
                          step.comm.rank()};
  step.services.downgrades->record({&strided, 1}, *step.policy, *step.services.log, step.services.events);
}

}  // namespace

void Step::forward(const ForwardArgs& a, Stream stream) const {
  Impl& step = *impl_;
  collective(step, [&] {
    const PreparedShape& ps = accept(step, "forward", a, stream);
    check_alias({{"out", a.out}}, {{"q", a.q}, {"k", a.k}, {"v", a.v}});
    check_buffer("workspace", a.workspace, ps.sizes.forward);
    attention::ForwardCall call{.q = a.q,
                                .k = a.k,
                                .v = a.v,
                                .remote_k = {},
                                .remote_v = {},
                                .out = a.out,
                                .lse = a.lse,
                                .workspace = {},
                                .dropout = a.dropout,
                                .global_q_offset = step.plan.range.row_offset,
                                .global_k_offset = step.plan.range.s_first};
    std::size_t offset = 0;
    std::optional<Transfers> transfers;
    if (ps.exchange) {
      refuse_capture(step, stream);
      check_buffer("kept_kv", a.kept_kv, ps.sizes.kept_kv);
      const BufferView landing = step.keep_kv() ? a.kept_kv : piece(a.workspace, 0, ps.landing);
      offset = step.keep_kv() ? 0 : ps.landing;
      report_strides(step, a.k, a.v);
      step.comm.group()->ledger().record(step.number, Direction::forward, step.forward_calls);
      transfers.emplace(*ps.exchange, stream);
      transfers->start(a.k, a.v, landing);
      call.remote_k = ps.exchange->remote_k(landing);
      call.remote_v = ps.exchange->remote_v(landing);
    }
    call.workspace = piece(a.workspace, offset, ps.attention->forward_workspace());
    ps.attention->forward(call, attention::Part::local, stream);
    if (ps.exchange) {
      transfers->finish();
      if (step.plan.remote_len > 0) ps.attention->forward(call, attention::Part::remote, stream);
    }
  });
  ++step.forward_calls;
  ++step.services.metrics->forward_calls;
}

void Step::backward(const BackwardArgs& a, Stream stream) const {
  Impl& step = *impl_;
  collective(step, [&] {
    const PreparedShape& ps = accept(step, "backward", a, stream);
    require(ps.shape.backward, ErrorCode::invalid_argument,
            "backward: this shape was prepared with CallShape::backward = false");
    check_alias({{"dq", a.dq}, {"dk", a.dk}, {"dv", a.dv}},
                {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}, {"dout", a.dout}});
    check_buffer("workspace", a.workspace, ps.sizes.backward);

    attention::BackwardCall call{.q = a.q,
                                 .k = a.k,
                                 .v = a.v,
                                 .remote_k = {},
                                 .remote_v = {},
                                 .out = a.out,
                                 .dout = a.dout,
                                 .lse = a.lse,
                                 .dq = a.dq,
                                 .dk = a.dk,
                                 .dv = a.dv,
                                 .shared_dk = {},
                                 .shared_dv = {},
                                 .remote_dk = {},
                                 .remote_dv = {},
                                 .workspace = {},
                                 .dropout = a.dropout,
                                 .global_q_offset = step.plan.range.row_offset,
                                 .global_k_offset = step.plan.range.s_first};
    std::size_t offset = 0;
    std::optional<Transfers> transfers;
    comm::KvExchange::Partials partials;
    BufferView gradients;
    if (ps.exchange) {
      refuse_capture(step, stream);
      check_buffer("kept_kv", a.kept_kv, ps.sizes.kept_kv);
      const BufferView landing = step.keep_kv() ? a.kept_kv : piece(a.workspace, 0, ps.landing);
      offset = step.keep_kv() ? 0 : ps.landing;
      gradients = piece(a.workspace, offset, ps.gradients);
      offset += ps.gradients;
      step.comm.group()->ledger().record(step.number, Direction::backward, step.backward_calls);
      transfers.emplace(*ps.exchange, stream);
      if (!step.keep_kv()) transfers->start(a.k, a.v, landing);
      call.remote_k = ps.exchange->remote_k(landing);
      call.remote_v = ps.exchange->remote_v(landing);
      partials = ps.exchange->partials(gradients);
      call.shared_dk = partials.shared_dk;
      call.shared_dv = partials.shared_dv;
      call.remote_dk = partials.remote_dk;
      call.remote_dv = partials.remote_dv;
    }
    call.workspace = piece(a.workspace, offset, ps.attention->backward_workspace());
    // The remote part first: its partials return while the local part runs.
    if (ps.exchange) {
      if (step.plan.remote_len > 0) {
        transfers->finish();
        ps.attention->backward(call, attention::Part::remote, stream);
      }
      transfers->start_reduce(partials, gradients);
    }
    ps.attention->backward(call, attention::Part::local, stream);
    if (ps.exchange) transfers->finish_reduce(gradients, a.dk, a.dv);
  });
  ++step.backward_calls;
  ++step.services.metrics->backward_calls;
}

std::optional<NotMine> Step::why_not_mine(const ForwardArgs& args, Stream stream) const {
  const PreparedShape* found = nullptr;
  auto bad = why_not(*impl_, args, stream, &found);
  if (bad) impl_->services.metrics->count_not_mine(bad->code);
  return bad;
}

const Decision& Step::decision() const { return impl_->decision; }
const DocLayout& Step::layout() const { return impl_->layout; }
std::uint64_t Step::forward_calls() const { return impl_->forward_calls; }
std::uint64_t Step::backward_calls() const { return impl_->backward_calls; }

std::optional<Recapture> Step::recapture() const { return impl_->recapture; }

void Step::refill(Stream stream) const {
  const Impl& step = *impl_;
  require(step.graph_documents > 0, ErrorCode::invalid_argument,
          "refill: the step was begun without options.graph_documents");
  require(stream.device == step.device, ErrorCode::invalid_argument, [&] {
    return fmt::format("refill: the stream is on device {}, the step was prepared for device {}", stream.device,
                       step.device);
  });
  require(!step.recapture || step.tables->captured(), ErrorCode::invalid_argument, [&] {
    return fmt::format(
        "refill: the step's calls have to be captured first, earlier ones do not serve it "
        "(recapture: {}): {}",
        step.recapture->code, step.recapture->text);
  });
  step.tables->refill(stream.handle);
}

WorkspaceSizes Step::workspace() const {
  WorkspaceSizes most;
  for (const PreparedShape& ps : impl_->shapes) {
    most.forward = std::max(most.forward, ps.sizes.forward);
    most.backward = std::max(most.backward, ps.sizes.backward);
    most.kept_kv = std::max(most.kept_kv, ps.sizes.kept_kv);
  }
  return most;
}

WorkspaceSizes Step::workspace(const CallShape& shape) const {
  for (const PreparedShape& ps : impl_->shapes)
    if (ps.shape == shape) return ps.sizes;
  throw Error(ErrorCode::invalid_argument, "workspace: the step was not prepared for this shape");
}

std::vector<KernelInfo> Step::kernels() const {
  std::vector<KernelInfo> all;
  for (const PreparedShape& ps : impl_->shapes) {
    for (KernelInfo& info : ps.attention->kernels()) all.push_back(std::move(info));
    if (!ps.exchange) continue;
    for (const auto& kernel : ps.exchange->kernels()) all.push_back(jit::info_of(*kernel));
  }
  return all;
}

}  // namespace bdcp
