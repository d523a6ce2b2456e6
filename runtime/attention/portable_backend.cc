// The portable backend: mma.sync kernels for every GPU since sm_80.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <numbers>

#include "attention/backend.h"
#include "attention/call_checks.h"
#include "attention/device_list.h"
#include "attention/kernel_tensor.h"
#include "attention/portable_config.h"
#include "attention/portable_work.h"
#include "attention/prepared_kernels.h"
#include "base/check.h"
#include "jit/kernel_info.h"
#include "kernel_templates/portable_args.h"
#include "plan/document_groups.h"
#include "plan/tile_schedule.h"

namespace bdcp::attention {
namespace {

using kernel::PortableBackwardArgs;
using kernel::PortableDqArgs;
using kernel::PortableForwardArgs;

constexpr int kMinDim = 8, kMaxDim = 256;
constexpr unsigned kRowThreads = 256;

/// kFinishDq: rounding of dQ's sums, or with `deterministic` dQ by query tiles.
enum Kernel { kForward, kDelta, kBackward, kFinishDq, kKernels };

bool short_documents(const plan::RankPlan& plan) {
  const plan::LayoutClass kind = plan::classify(plan);
  return kind == plan::LayoutClass::short_docs || kind == plan::LayoutClass::tiny;
}

std::array<jit::KernelSpec, kKernels> make_specs(const CallShape& shape, const std::string& arch,
                                                 bool short_docs, const Options& options, bool aligned) {
  return {portable_forward_spec(shape, arch, short_docs, aligned),
          portable_rows_spec("portable_backward_delta", shape, arch, aligned),
          portable_backward_spec(shape, arch, options, aligned),
          options.deterministic ? portable_dq_spec(shape, arch, aligned)
                                : portable_rows_spec("portable_backward_round", shape, arch, aligned)};
}

int kernels_of(const CallShape& shape) { return shape.backward ? kKernels : kForward + 1; }

class PortableAttention final : public PreparedAttention {
 public:
  PortableAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                    const PrepareContext& context, KernelMemo& memo)
      : shape_(shape),
        plan_(plan),
        options_(options),
        device_(context.device),
        tables_(context.tables),
        room_(context.room),
        lists_later_(context.lists_later),
        on_downgrade_(context.on_downgrade) {
    const std::string& arch = device_->facts().arch;
    // Batch invariance: the block size must not depend on the layout, and no document may share a tile.
    const bool short_docs = !options.batch_invariant && short_documents(plan);
    kernels_ = memo.get(shape, options, short_docs ? 1 : 0, context, [&] {
      std::vector<jit::KernelSpec> specs;
      for (const bool aligned : {false, true}) {
        const auto all = make_specs(shape, arch, short_docs, options, aligned);
        specs.insert(specs.end(), all.begin(), all.begin() + kernels_of(shape));
      }
      return specs;
    });
    forward_ = portable_forward_config(shape, arch, short_docs);
    backward_ = portable_backward_config(shape, arch);
    if (shape.backward && options.deterministic) dq_ = portable_dq_config(shape, arch);
    // With `deterministic` no dQ is summed in memory.
    summed_beyond_ = options.deterministic ? std::numeric_limits<int>::max() : backward_.keys;
    const auto summed = [&](const plan::Segment& s) { return s.keys() > summed_beyond_ && s.rows() > 0; };
    sums_ = context.room.wanted() ? plan.key_rows > summed_beyond_  // whether any layout has such rows
                                  : std::any_of(plan.segments.begin(), plan.segments.end(), summed);
    if (!context.lists_later) lists();
  }

  std::size_t backward_workspace() const override { return delta_bytes() + sum_bytes(); }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call);
    const Lists& lists = this->lists();
    const std::size_t tiles = lists.tiles.size(part);
    if (tiles == 0) return;
    lists.tables->use(stream.handle);
    const bool aligned = all_aligned({call.q, call.k, call.v, call.remote_k, call.remote_v, call.out});
    PortableForwardArgs args{};
    args.q = to_kernel(call.q);
    args.k = to_kernel(call.k);
    args.v = to_kernel(call.v);
    args.remote_k = to_kernel(call.remote_k);
    args.remote_v = to_kernel(call.remote_v);
    args.out = to_kernel(call.out);
    args.lse = call.lse.data;
    args.lse_stride = call.lse.head_stride;
    args.tiles = lists.tiles.part(part);
    args.tile_count = lists.tiles.count();
    args.segments = lists.segments.data();
    args.remote_len = static_cast<int>(plan_.remote_len);
    args.head_groups = shape_.heads_q / forward_.pack;
    args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);
    launch(kForward, aligned, tiles * static_cast<std::size_t>(args.head_groups),
           static_cast<unsigned>(forward_.warps * 32), &args, stream);
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call, options_.payload_f32);
    check_workspace(call.workspace, backward_workspace());
    bool aligned = all_aligned(
        {call.q, call.k, call.v, call.remote_k, call.remote_v, call.out, call.dout, call.dq, call.dk, call.dv});
    if (!options_.payload_f32) aligned = all_aligned({call.remote_dk, call.remote_dv}) && aligned;
    PortableBackwardArgs args{};
    args.q = to_kernel(call.q);
    args.k = to_kernel(call.k);
    args.v = to_kernel(call.v);
    args.remote_k = to_kernel(call.remote_k);
    args.remote_v = to_kernel(call.remote_v);
    args.out = to_kernel(call.out);
    args.dout = to_kernel(call.dout);
    args.dq = to_kernel(call.dq);
    args.lse = call.lse.data;
    args.lse_stride = call.lse.head_stride;
    args.delta = static_cast<float*>(call.workspace.data);
    if (sums_)
      args.dq_sum = reinterpret_cast<float*>(static_cast<std::byte*>(call.workspace.data) + delta_bytes());
    args.rows = plan_.rows;
    args.dk = {to_kernel(call.dk), to_kernel(call.shared_dk), to_kernel(call.remote_dk)};
    args.dv = {to_kernel(call.dv), to_kernel(call.shared_dv), to_kernel(call.remote_dv)};
    const Lists& lists = this->lists();
    args.tiles = lists.key_tiles.part(part);
    args.row_chunks = lists.row_chunks.part(part);
    args.tile_count = lists.key_tiles.count();
    args.chunk_count = lists.row_chunks.count();
    args.segments = lists.segments.data();
    args.remote_len = static_cast<int>(plan_.remote_len);
    args.shared_begin = static_cast<int>(plan_.shared_begin);
    args.heads_q = shape_.heads_q;
    args.heads_kv = shape_.heads_kv;
    args.scale = static_cast<float>(shape_.softmax_scale());
    args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);
    lists.tables->use(stream.handle);
    const std::size_t chunks = lists.row_chunks.size(part);
    launch(kDelta, aligned, chunks, kRowThreads, &args, stream);
    launch(kBackward, aligned, lists.key_tiles.size(part) * static_cast<std::size_t>(shape_.heads_kv),
           static_cast<unsigned>(backward_.warps * 32), &args, stream);
    if (options_.deterministic)
      launch_dq(args, aligned, part, stream);
    else if (sums_)
      launch(kFinishDq, aligned, chunks, kRowThreads, &args, stream);
  }

  std::vector<KernelInfo> kernels() const override {
    std::vector<KernelInfo> infos;
    for (const PreparedKernel& kernel : *kernels_) infos.push_back(jit::info_of(*kernel.compiled));
    return infos;
  }

 private:
  struct Lists {
    std::shared_ptr<device::Tables> tables;
    DeviceList<kernel::Segment> segments;
    DeviceList<kernel::PortableTile> tiles, dq_tiles;
    DeviceList<kernel::PortableKeyTile> key_tiles;
    DeviceList<kernel::PortableRows> row_chunks;
  };

  /// Made at once, or by the first call that needs them.
  const Lists& lists() const {
    std::call_once(lists_once_, [&] {
      auto made = std::make_unique<Lists>();
      made->tables = lists_later_ ? tables_->another() : tables_;
      make_lists(*made);
      if (lists_later_) {
        const device::RelaxedCaptures relaxed(device_->driver());
        made->tables->upload();
      }
      lists_ = std::move(made);
    });
    return *lists_;
  }

  void make_lists(Lists& lists) const {
    device::Tables& tables = *lists.tables;
    const GraphRoom& room = room_;
    lists.segments =
        DeviceList<kernel::Segment>(tables, to_kernel(plan_.segments), plan_.segments.size(), room.segments());
    // What tiles of queries read again, and tiles of keys read and add to.
    const std::int64_t dims = shape_.head_dim + shape_.dim_v(),
                       element = static_cast<std::int64_t>(size_of(shape_.dtype));
    const std::int64_t key_rows = rows_in_cache(shape_.heads_kv * dims * element);
    const std::int64_t query_rows =
        rows_in_cache(shape_.heads_q * (dims * element + (options_.deterministic ? 0 : shape_.head_dim * 4)));
    const auto tiles = make_query_tiles(plan_, {.rows = forward_.tokens(),
                                                .keys = forward_.keys,
                                                .share_short = !options_.batch_invariant,
                                                .group_rows = key_rows});
    lists.tiles = DeviceList<kernel::PortableTile>(tables, tiles.items, tiles.local_count,
                                                   room.pieces(plan_.rows, forward_.tokens()));
    check_grid("query tiles", lists.tiles, shape_.heads_q / forward_.pack);
    if (!shape_.backward) return;
    const auto key_tiles = make_key_tiles(plan_, backward_.keys, !options_.batch_invariant, query_rows);
    lists.key_tiles = DeviceList<kernel::PortableKeyTile>(tables, key_tiles.items, key_tiles.local_count,
                                                          room.pieces(plan_.key_rows, backward_.keys));
    check_grid("key tiles", lists.key_tiles, shape_.heads_kv);
    if (options_.deterministic) {
      const auto dq_tiles = make_dq_tiles(
          plan_, {.rows = dq_.tokens(), .keys = dq_.keys, .group_rows = key_rows}, backward_.keys);
      lists.dq_tiles = DeviceList<kernel::PortableTile>(tables, dq_tiles.items, dq_tiles.local_count,
                                                        room.pieces(plan_.rows, dq_.tokens()));
      check_grid("query tiles", lists.dq_tiles, shape_.heads_q / dq_.pack);
    }
    const auto chunks = make_row_chunks(plan_, summed_beyond_);
    lists.row_chunks = DeviceList<kernel::PortableRows>(tables, chunks.items, chunks.local_count,
                                                        room.pieces(plan_.rows, kRowsPerChunk, 2));
  }

  std::int64_t rows_in_cache(std::int64_t row_bytes) const {
    return plan::rows_in_cache(device_->facts().l2_bytes, row_bytes);
  }

  void launch_dq(const PortableBackwardArgs& of, bool aligned, Part part, Stream stream) const {
    PortableDqArgs args{};
    args.q = of.q;
    args.k = of.k;
    args.v = of.v;
    args.remote_k = of.remote_k;
    args.remote_v = of.remote_v;
    args.dout = of.dout;
    args.dq = of.dq;
    args.lse = of.lse;
    args.lse_stride = of.lse_stride;
    args.delta = of.delta;
    args.rows = of.rows;
    const Lists& lists = this->lists();
    args.tiles = lists.dq_tiles.part(part);
    args.tile_count = lists.dq_tiles.count();
    args.segments = of.segments;
    args.remote_len = of.remote_len;
    args.head_groups = shape_.heads_q / dq_.pack;
    args.scale = of.scale;
    args.scale_log2 = of.scale_log2;
    launch(kFinishDq, aligned, lists.dq_tiles.size(part) * static_cast<std::size_t>(args.head_groups),
           static_cast<unsigned>(dq_.warps * 32), &args, stream);
  }

  std::size_t delta_bytes() const {
    return padded(static_cast<std::size_t>(plan_.rows) * static_cast<std::size_t>(shape_.heads_q) *
                  sizeof(float));
  }
  std::size_t sum_bytes() const {
    constexpr std::size_t unit = kernel::kDqSumUnit;
    const std::size_t pitch = (static_cast<std::size_t>(shape_.head_dim) + unit - 1) / unit * unit;
    return sums_ ? padded(static_cast<std::size_t>(plan_.rows) * static_cast<std::size_t>(shape_.heads_q) *
                          pitch * sizeof(float))
                 : 0;
  }

  bool all_aligned(std::initializer_list<ConstTensorView> views) const {
    for (const ConstTensorView& view : views)
      if (!aligned_16(view)) {
        // Marked only once it has been taken note of: a policy that refuses it refuses every call.
        if (!misaligned_.load() && on_downgrade_)
          on_downgrade_({"16-byte copies", "2-byte copies", "misaligned",
                         "a tensor's rows do not all start on 16 bytes; the kernel copies element by element",
                         -1});
        misaligned_.store(true);
        return false;
      }
    return true;
  }

  void launch(Kernel which, bool aligned, std::size_t ctas, unsigned threads, void* args, Stream stream) const {
    if (ctas == 0) return;
    const int index = (aligned ? kernels_of(shape_) : 0) + which;
    const PreparedKernel& kernel = (*kernels_)[static_cast<std::size_t>(index)];
    // The others follow one of this call's own kernels, and wait for it themselves.
    const bool early = which != kForward && which != kDelta;
    attention::launch(*device_, kernel, {static_cast<unsigned>(ctas), 1, 1}, threads, args, stream, early);
  }

  CallShape shape_;
  plan::RankPlan plan_;
  Options options_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<device::Tables> tables_;
  GraphRoom room_;
  bool lists_later_;
  std::function<void(const Downgrade&)> on_downgrade_;
  std::shared_ptr<const PreparedKernels>
      kernels_;  // those for tensors that are not aligned, then those that are
  PortableForwardConfig forward_;
  PortableBackwardConfig backward_;
  PortableDqConfig dq_;
  int summed_beyond_ = 0;  // rows that more keys see have their dQ summed over several tiles
  bool sums_ = false;      // there are such rows
  mutable std::once_flag lists_once_;
  mutable std::unique_ptr<const Lists> lists_;
  mutable std::atomic<bool> misaligned_{false};
};

class PortableBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::portable; }

  plan::Verdict can(const CallShape& shape, const Target& target, const Options&) const override {
    if (target.host())
      return {false, "needs_cuda", "the portable backend is a CUDA kernel; the call runs on the host"};
    if (target.facts->cc_major < 8)
      return {false, "arch",
              fmt::format("CUDA device {} is {}, the portable backend needs sm_80 or newer",
                          target.facts->ordinal, target.facts->arch)};
    return check_limits(shape);
  }

  std::vector<jit::KernelSpec> required_kernels(const CallShape& shape, const std::string& arch, bool,
                                                const Options& options) const override {
    std::vector<jit::KernelSpec> specs;
    if (!check_limits(shape).ok) return specs;
    for (const bool short_docs : {false, true})
      for (const bool aligned : {true, false}) {
        if (short_docs && options.batch_invariant) continue;
        const auto all = make_specs(shape, arch, short_docs, options, aligned);
        for (int i = 0; i < (short_docs ? kForward + 1 : kernels_of(shape)); ++i) specs.push_back(all[i]);
      }
    return specs;
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext& context) const override {
    require(context.device != nullptr && context.cache != nullptr && context.tables != nullptr,
            ErrorCode::invalid_argument, "the portable backend needs a CUDA device, a kernel cache and tables");
    const plan::Verdict verdict = can(shape, Target{&context.device->facts()}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    return std::make_shared<PortableAttention>(shape, plan, options, context, kernels_);
  }

 private:
  static plan::Verdict check_limits(const CallShape& shape) {
    if (plan::Verdict verdict = check_shape(shape); !verdict.ok) return verdict;
    if (shape.dtype == DType::f32)
      return {false, "dtype", "dtype is f32; the portable backend takes f16 and bf16"};
    for (const int dim : {shape.head_dim, shape.dim_v()})
      if (dim % 8 != 0 || dim < kMinDim || dim > kMaxDim)
        return {false, "head_dim",
                fmt::format("head_dim {} and head_dim_v {}: the portable backend takes multiples of 8 "
                            "from {} to {}",
                            shape.head_dim, shape.dim_v(), kMinDim, kMaxDim)};
    if (shape.dropout_p > 0)
      return {false, "dropout",
              fmt::format("dropout_p is {}; the portable backend has no dropout", shape.dropout_p)};
    return {};  // tile shapes exist for every head dim and arch; see portable_config.h
  }

  mutable KernelMemo kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_portable_backend() { return std::make_unique<PortableBackend>(); }

}  // namespace bdcp::attention
