#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "comm/call_ledger.h"
#include "jit/kernel_info.h"
#include "step_checks.h"
#include "step_impl.h"
#include "step_transfers.h"

namespace bdcp {
namespace {

BufferView piece(BufferView whole, std::size_t offset, std::size_t bytes) {
  return bytes ? BufferView{static_cast<std::byte*>(whole.data) + offset, bytes} : BufferView{};
}

// World > 1: whatever goes wrong on one rank is told to the others, so that none waits for it in vain.
template <class Body>
void collective(const Step::Impl& step, Body&& body) {
  comm::Group* group = step.comm.group().get();
  try {
    if (group) group->check();
    std::optional<device::CurrentContext> context;  // a call of ours asks the driver some twenty times
    if (step.device_handle) context.emplace(*step.device_handle);
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

void report_strides(Step::Impl& step, const comm::KvExchange& exchange, const ConstTensorView& k,
                    const ConstTensorView& v) {
  const bool sends =
      step.decision.path == ExchangePath::allgather ? exchange.moves() : !step.plan.sends.empty();
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
      report_strides(step, *ps.exchange, a.k, a.v);
      step.comm.group()->ledger().record(step.number, Direction::forward, step.forward_calls);
      transfers.emplace(*ps.exchange, stream, Direction::forward);
      transfers->start(a.k, a.v, landing);
      if (ps.exchange->moves()) call.sm_margin = step.sm_margin;
      call.margin_at_start = step.margin_at_start;
      call.remote_k = ps.exchange->remote_k(landing);
      call.remote_v = ps.exchange->remote_v(landing);
    }
    call.workspace = piece(a.workspace, offset, ps.attention->forward_workspace());
    ps.attention->forward(call, attention::Part::local, stream);
    if (ps.exchange) {
      transfers->finish();
      call.sm_margin = 0;
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
      transfers.emplace(*ps.exchange, stream, Direction::backward);
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
    const auto run_local = [&] {
      if (ps.exchange && ps.exchange->moves() && !step.margin_at_start) call.sm_margin = step.sm_margin;
      ps.attention->backward(call, attention::Part::local, stream);
      call.sm_margin = 0;
    };
    const auto run_remote = [&] {
      if (step.plan.remote_len > 0) {
        transfers->finish();
        ps.attention->backward(call, attention::Part::remote, stream);
      }
      transfers->start_reduce(partials, gradients);
    };
    // One of the ways hides behind the local part: that of K/V hither, or that of their partials back.
    if (ps.exchange && (step.keep_kv() || !ps.exchange->fetch_is_longer())) {
      run_remote();
      run_local();
    } else {
      run_local();
      if (ps.exchange) run_remote();
    }
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

ExposedExchange Step::exposed_exchange() const {
  if (impl_->meter) impl_->meter->read();
  const comm::ExposedTime& time = *impl_->exposed;
  return {time.us(Direction::forward), time.us(Direction::backward), time.waits(Direction::forward),
          time.waits(Direction::backward), time.missed()};
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
