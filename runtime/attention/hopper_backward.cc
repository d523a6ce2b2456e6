#include "attention/hopper_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "attention/call_checks.h"
#include "attention/hopper_backward_work.h"
#include "attention/hopper_maps.h"
#include "base/check.h"
#include "jit/kernel_info.h"

namespace bdcp::attention {
namespace {

constexpr unsigned kRowThreads = 256;
constexpr int kRowShares = 8;  // CTAs per chunk of rows, each with its share of the heads

std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Rows start on 16 bytes, whatever the strides' signs. Tensors without rows are never written.
bool aligned_16(const ConstTensorView& view) {
  if (view.tokens == 0 || !view.data || view.dtype == DType::f32) return true;
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.token_stride % 8 == 0 &&
         view.head_stride % 8 == 0;
}

}  // namespace

std::vector<jit::KernelSpec> hopper_backward_specs(const CallShape& shape, const std::string& arch,
                                                   const Options& options) {
  return {hopper_backward_rows_spec("hopper_backward_delta", shape, arch),
          hopper_backward_spec(shape, arch, options),
          hopper_backward_rows_spec("hopper_backward_round", shape, arch)};
}

HopperBackward::HopperBackward(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                               const PrepareContext& context)
    : shape_(shape),
      plan_(plan),
      options_(options),
      device_(context.device),
      config_(hopper_backward_config(shape)) {
  const auto specs = hopper_backward_specs(shape, device_->facts().arch, options);
  std::vector<std::string> errors;
  const auto kernels = context.cache->get_all(specs, &errors);
  for (std::size_t i = 0; i < kKernels; ++i) {
    // A failed one is asked for again, so that its error arrives with code and log.
    compiled_[i] = kernels[i] ? kernels[i] : context.cache->get(specs[i]);
    loaded_[i] = context.cache->load(specs[i], device_);
  }
  const HopperBackwardWork work =
      make_hopper_backward_work(plan, config_.rows, config_.keys, !options.batch_invariant);
  require(work.tiles.items.size() * static_cast<std::size_t>(shape.heads_kv) < (std::size_t{1} << 30),
          ErrorCode::unsupported, [&] {
            return fmt::format("{} key tiles of {} heads; the kernel counts up to 2^30 items",
                               work.tiles.items.size(), shape.heads_kv);
          });
  sum_blocks_ = work.sum_blocks;
  tiles_ = DeviceList<kernel::HopperKeyTile>(*device_, work.tiles.items, work.tiles.local_count);
  key_rows_ = DeviceList<kernel::HopperKeyRows>(*device_, work.key_rows);
  chunks_ = DeviceList<kernel::HopperRows>(*device_, work.chunks.items, work.chunks.local_count);
  std::vector<kernel::Segment> segments;
  segments.reserve(plan.segments.size());
  for (const plan::Segment& s : plan.segments) segments.push_back({s.q_begin, s.q_end, s.k_begin, s.k_end});
  segments_ = DeviceList<kernel::Segment>(*device_, segments);
}

std::size_t HopperBackward::values() const {
  return padded(static_cast<std::size_t>(plan_.rows) * static_cast<std::size_t>(shape_.heads_q) *
                sizeof(float));
}
std::size_t HopperBackward::sums() const {
  return padded(sum_blocks_ * static_cast<std::size_t>(shape_.heads_q) * hopper_dq_sums(shape_, config_) *
                sizeof(float));
}
std::size_t HopperBackward::counters() const {
  return padded((sum_blocks_ * static_cast<std::size_t>(shape_.heads_q) * 2 + 1) * sizeof(int));
}
std::size_t HopperBackward::workspace() const { return 2 * values() + sums() + counters(); }

bool HopperBackward::takes(const BackwardCall& call) {
  for (const ConstTensorView& view : {call.q, call.k, call.v, call.remote_k, call.remote_v, call.dout})
    if (!fits_tma(view)) return false;
  for (const ConstTensorView& view :
       {call.out, ConstTensorView(call.dq), ConstTensorView(call.dk), ConstTensorView(call.dv),
        ConstTensorView(call.remote_dk), ConstTensorView(call.remote_dv)})
    if (!aligned_16(view)) return false;
  return reinterpret_cast<std::uintptr_t>(call.workspace.data) % 16 == 0;
}

kernel::HopperRowsArgs HopperBackward::rows_args(const BackwardCall& call, Part part) const {
  auto* at = static_cast<std::byte*>(call.workspace.data);
  kernel::HopperRowsArgs args{};
  args.out = to_kernel(call.out);
  args.dout = to_kernel(call.dout);
  args.dq = to_kernel(call.dq);
  args.lse = call.lse.data;
  args.lse_stride = call.lse.head_stride;
  args.lse_log2 = reinterpret_cast<float*>(at);
  args.delta = reinterpret_cast<float*>(at + values());
  args.dq_sum = reinterpret_cast<float*>(at + 2 * values());
  args.ticket = reinterpret_cast<int*>(at + 2 * values() + sums());
  args.added = args.ticket + 1;
  args.rows = plan_.rows;
  args.chunks = chunks_.part(part);
  args.chunk_count = static_cast<int>(chunks_.size(part));
  args.heads_q = shape_.heads_q;
  args.scale = static_cast<float>(shape_.softmax_scale());
  return args;
}

void HopperBackward::launch(const BackwardCall& call, Part part, Stream stream) const {
  check_stream(*device_, stream);
  check_call(shape_, plan_, call, options_.payload_f32);
  require(call.workspace.bytes >= workspace(), ErrorCode::invalid_argument, [&] {
    return fmt::format("backward workspace has {} bytes, needs {}", call.workspace.bytes, workspace());
  });
  const std::size_t items = tiles_.size(part) * static_cast<std::size_t>(shape_.heads_kv);
  kernel::HopperRowsArgs rows = rows_args(call, part);
  const auto shares = static_cast<std::size_t>(std::min(kRowShares, shape_.heads_q));
  const auto chunks = static_cast<std::size_t>(rows.chunk_count);
  // Also without rows: it resets the counter of items.
  if (items > 0 || chunks > 0)
    launch_one(kDelta, std::max<std::size_t>(chunks, 1), shares, kRowThreads, &rows, stream);
  if (items > 0) {
    kernel::HopperBackwardArgs args{};
    // There are keys, or there would be no items; without rows neither Q nor dO is read.
    const kernel::TensorMap none{};
    encode_rows(*device_, call.k, call.remote_k, config_.keys, none, args.k);
    encode_rows(*device_, call.v, call.remote_v, config_.keys, none, args.v);
    encode_rows(*device_, call.remote_k, call.k, config_.keys, none, args.remote_k);
    encode_rows(*device_, call.remote_v, call.v, config_.keys, none, args.remote_v);
    encode_rows(*device_, call.q, call.q, config_.rows, args.k, args.q);
    encode_rows(*device_, call.dout, call.dout, config_.rows, args.k, args.dout);
    args.k_rows = to_kernel(call.k);
    args.v_rows = to_kernel(call.v);
    args.remote_k_rows = to_kernel(call.remote_k);
    args.remote_v_rows = to_kernel(call.remote_v);
    args.dq = rows.dq;
    args.dk = {to_kernel(call.dk), to_kernel(call.shared_dk), to_kernel(call.remote_dk)};
    args.dv = {to_kernel(call.dv), to_kernel(call.shared_dv), to_kernel(call.remote_dv)};
    args.lse = rows.lse_log2;
    args.delta = rows.delta;
    args.dq_sum = rows.dq_sum;
    args.added = rows.added;
    args.ticket = rows.ticket;
    args.rows = plan_.rows;
    args.tiles = tiles_.part(part);
    args.key_rows = key_rows_.data();
    args.segments = segments_.data();
    args.item_count = static_cast<int>(items);
    args.heads_q = shape_.heads_q;
    args.heads_kv = shape_.heads_kv;
    args.remote_len = static_cast<int>(plan_.remote_len);
    args.shared_begin = static_cast<int>(plan_.shared_begin);
    args.scale = rows.scale;
    args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);
    launch_one(kMain, std::min(items, static_cast<std::size_t>(device_->facts().sm_count)), 1,
               static_cast<unsigned>(config_.threads()), &args, stream);
  }
  if (sum_blocks_ > 0 && chunks > 0) launch_one(kRound, chunks, shares, kRowThreads, &rows, stream);
}

void HopperBackward::launch_one(Kernel which, std::size_t x, std::size_t y, unsigned threads, void* args,
                                Stream stream) const {
  void* parameters[] = {args};
  device_->launch(*loaded_[which], {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}, {threads, 1, 1},
                  static_cast<unsigned>(compiled_[which]->spec.dynamic_smem), stream.handle, parameters);
}

void HopperBackward::append_kernels(std::vector<KernelInfo>& infos) const {
  for (const auto& kernel : compiled_) infos.push_back(jit::info_of(*kernel));
}

}  // namespace bdcp::attention
