// The Hopper backend: wgmma and TMA, forward. Backward, and calls whose tensors TMA cannot read, are the
// portable backend's: the two agree on what LSE means.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numbers>

#include "attention/backend.h"
#include "attention/call_checks.h"
#include "attention/device_list.h"
#include "attention/hopper_config.h"
#include "attention/hopper_work.h"
#include "attention/kernel_tensor.h"
#include "attention/prepared_kernels.h"
#include "base/check.h"
#include "jit/kernel_info.h"

namespace bdcp::attention {
namespace {

using kernel::HopperForwardArgs;

constexpr int kMinDim = 8, kMaxDim = 256;
constexpr std::int64_t kElement = 2;  // bytes

HopperLayout layout_of(const plan::RankPlan& plan, const Options& options) {
  // Batch invariance: the block size must not depend on the layout.
  return options.batch_invariant ? HopperLayout::long_docs : hopper_layout(plan::classify(plan));
}

/// What a tensor map can describe: 16-byte rows, strides that grow. Tensors without rows are never read.
bool fits_tma(const ConstTensorView& view) {
  constexpr std::int64_t kUnit = 16 / kElement, kMaxStride = std::int64_t{1} << 39;
  if (view.tokens == 0 || !view.data) return true;
  const auto fits = [&](std::int64_t stride, std::int64_t count) {
    return count == 1 || (stride > 0 && stride < kMaxStride / kElement && stride % kUnit == 0);
  };
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && fits(view.token_stride, view.tokens) &&
         fits(view.head_stride, view.heads);
}

/// The stride in bytes; any valid one where there is nothing to step to.
std::uint64_t step(std::int64_t stride, std::int64_t count) {
  return count == 1 ? 16 : static_cast<std::uint64_t>(stride * kElement);
}

/// Rows by two coordinates that are added, the base `tile` rows early; see HopperForwardArgs.
device::TensorMapSpec rows_map(const ConstTensorView& view, int tile) {
  device::TensorMapSpec spec;
  spec.bf16 = view.dtype == DType::bf16;
  const std::uint64_t row = step(view.token_stride, view.tokens);
  spec.base = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(view.data) -
                                            static_cast<std::uintptr_t>(tile) * row);
  spec.rank = 4;
  spec.dims = {static_cast<std::uint64_t>(view.dim), static_cast<std::uint64_t>(tile),
               static_cast<std::uint64_t>(view.tokens + tile), static_cast<std::uint64_t>(view.heads)};
  spec.strides = {row, row, step(view.head_stride, view.heads)};
  spec.box = {64, static_cast<std::uint32_t>(tile), 1, 1};
  return spec;
}
/// The same with `pack` heads beside each other.
device::TensorMapSpec packed_map(const ConstTensorView& view, int tile, int pack) {
  device::TensorMapSpec spec = rows_map(view, tile);
  const std::uint64_t row = spec.strides[0], head = spec.strides[2];
  const auto heads = static_cast<std::uint64_t>(view.heads), packed = static_cast<std::uint64_t>(pack);
  spec.rank = 5;
  spec.dims = {spec.dims[0], packed, spec.dims[1], spec.dims[2], heads / packed};
  spec.strides = {head, row, row, head * packed};
  spec.box = {64, static_cast<std::uint32_t>(pack), static_cast<std::uint32_t>(tile), 1, 1};
  return spec;
}

class HopperAttention final : public PreparedAttention {
 public:
  HopperAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                  const PrepareContext& context, KernelMemo& memo,
                  std::shared_ptr<const PreparedAttention> portable)
      : shape_(shape),
        plan_(plan),
        device_(context.device),
        tables_(context.tables),
        on_downgrade_(context.on_downgrade),
        portable_(std::move(portable)) {
    const HopperLayout layout = layout_of(plan, options);
    config_ = hopper_forward_config(shape, layout);
    kernel_ = memo.get(shape, options, static_cast<int>(layout), context, [&] {
      return std::vector<jit::KernelSpec>{hopper_forward_spec(shape, device_->facts().arch, layout)};
    });
    const HopperWork work = make_hopper_work(plan, config_.tokens(), config_.keys, !options.batch_invariant);
    require(work.tiles.size() * groups() < (std::size_t{1} << 30), ErrorCode::unsupported, [&] {
      return fmt::format("{} tiles of {} head groups; the kernel counts up to 2^30 items", work.tiles.size(),
                         groups());
    });
    tiles_ = DeviceList<kernel::HopperTile>(*context.tables, work.tiles, work.local_count);
    visible_ = DeviceList<kernel::KeyRange>(*context.tables, work.visible);
  }

  std::size_t forward_workspace() const override { return portable_->forward_workspace(); }
  std::size_t backward_workspace() const override { return portable_->backward_workspace(); }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call);
    const std::size_t items = tiles_.size(part) * groups();
    if (items == 0) return;
    tables_->use(stream.handle);
    for (const ConstTensorView& view :
         {call.q, call.k, call.v, call.remote_k, call.remote_v, ConstTensorView(call.out)})
      if (!fits_tma(view)) {
        note_misaligned();
        return portable_->forward(call, part, stream);
      }
    HopperForwardArgs args{};
    const int tokens = config_.tokens(), keys = config_.keys;
    encode(packed_map(call.q, tokens, config_.pack), args.q);
    encode(packed_map(call.out, tokens, config_.pack), args.out);
    encode_keys(call.k, call.remote_k, keys, args.k, args.q);
    encode_keys(call.v, call.remote_v, keys, args.v, args.q);
    if (plan_.remote_len > 0) {
      encode_keys(call.remote_k, call.k, keys, args.remote_k, args.q);
      encode_keys(call.remote_v, call.v, keys, args.remote_v, args.q);
    } else {  // never read
      args.remote_k = args.k;
      args.remote_v = args.v;
    }
    args.k_rows = to_kernel(call.k);
    args.v_rows = to_kernel(call.v);
    args.remote_k_rows = to_kernel(call.remote_k);
    args.remote_v_rows = to_kernel(call.remote_v);
    args.lse = call.lse.data;
    args.lse_stride = call.lse.head_stride;
    args.tiles = tiles_.part(part);
    args.visible = visible_.data();
    args.item_count = static_cast<int>(items);
    args.groups = static_cast<int>(groups());
    args.remote_len = static_cast<int>(plan_.remote_len);
    args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);
    const auto ctas = std::min<std::size_t>(items, static_cast<std::size_t>(device_->facts().sm_count));
    void* parameters[] = {&args};
    device_->launch(*kernel_->front().loaded, {static_cast<unsigned>(ctas), 1, 1},
                    {static_cast<unsigned>(config_.threads()), 1, 1},
                    static_cast<unsigned>(kernel_->front().compiled->spec.dynamic_smem), stream.handle,
                    parameters);
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    portable_->backward(call, part, stream);
  }

  std::vector<KernelInfo> kernels() const override {
    std::vector<KernelInfo> infos = portable_->kernels();
    infos.insert(infos.begin(), jit::info_of(*kernel_->front().compiled));
    return infos;
  }

 private:
  std::size_t groups() const { return static_cast<std::size_t>(shape_.heads_q / config_.pack); }

  void encode(const device::TensorMapSpec& spec, kernel::TensorMap& map) const {
    device_->encode_tensor_map(spec, &map);
  }
  /// A map of `view`; where it has no rows, any valid one, which is never read through.
  void encode_keys(const ConstTensorView& view, const ConstTensorView& other, int keys, kernel::TensorMap& map,
                   const kernel::TensorMap& any) const {
    const ConstTensorView& rows = view.data && view.tokens > 0 ? view : other;
    if (rows.data && rows.tokens > 0)
      encode(rows_map(rows, keys), map);
    else
      map = any;
  }

  void note_misaligned() const {
    // Marked only once it has been taken note of: a policy that refuses it refuses every call.
    if (!misaligned_.load() && on_downgrade_)
      on_downgrade_({"hopper", "portable", "misaligned",
                     "a tensor's rows do not all start on 16 bytes; TMA cannot read it", -1});
    misaligned_.store(true);
  }

  CallShape shape_;
  plan::RankPlan plan_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const device::Tables> tables_;
  std::function<void(const Downgrade&)> on_downgrade_;
  std::shared_ptr<const PreparedAttention> portable_;
  HopperForwardConfig config_;
  std::shared_ptr<const PreparedKernels> kernel_;
  DeviceList<kernel::HopperTile> tiles_;
  DeviceList<kernel::KeyRange> visible_;
  mutable std::atomic<bool> misaligned_{false};
};

class HopperBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::hopper; }

  plan::Verdict can(const CallShape& shape, const Target& target, const Options& options) const override {
    if (target.host())
      return {false, "needs_cuda", "the hopper backend is a CUDA kernel; the call runs on the host"};
    if (target.facts->arch != "sm_90a")
      return {false, "arch",
              fmt::format("CUDA device {} is {}, the hopper backend needs sm_90a", target.facts->ordinal,
                          target.facts->arch)};
    if (plan::Verdict verdict = check_limits(shape); !verdict.ok) return verdict;
    if (!options.unproven)
      return {false, "unproven",
              "the hopper kernels have not run through the library on a GPU yet; attention.backend: \"hopper\" "
              "takes them all the same"};
    return portable_->can(shape, target, options);
  }

  std::vector<jit::KernelSpec> required_kernels(const CallShape& shape, const std::string& arch,
                                                bool distributed, const Options& options) const override {
    std::vector<jit::KernelSpec> specs;
    if (arch != "sm_90a" || !options.unproven || !check_limits(shape).ok) return specs;
    for (int i = 0; i < kHopperLayouts; ++i) {
      const auto layout = static_cast<HopperLayout>(i);
      if (options.batch_invariant && layout != HopperLayout::long_docs) continue;
      jit::KernelSpec spec = hopper_forward_spec(shape, arch, layout);
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(std::move(spec));
    }
    for (jit::KernelSpec& spec : portable_->required_kernels(shape, arch, distributed, options))
      specs.push_back(std::move(spec));
    return specs;
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext& context) const override {
    require(context.device != nullptr && context.cache != nullptr && context.tables != nullptr,
            ErrorCode::invalid_argument, "the hopper backend needs a CUDA device, a kernel cache and tables");
    const plan::Verdict verdict = can(shape, Target{&context.device->facts()}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    return std::make_shared<HopperAttention>(shape, plan, options, context, kernels_,
                                             portable_->prepare(shape, plan, options, context));
  }

 private:
  static plan::Verdict check_limits(const CallShape& shape) {
    if (plan::Verdict verdict = check_shape(shape); !verdict.ok) return verdict;
    if (shape.dtype == DType::f32)
      return {false, "dtype", "dtype is f32; the hopper backend takes f16 and bf16"};
    for (const int dim : {shape.head_dim, shape.dim_v()})
      if (dim % 8 != 0 || dim < kMinDim || dim > kMaxDim)
        return {false, "head_dim",
                fmt::format("head_dim {} and head_dim_v {}: the hopper backend takes multiples of 8 "
                            "from {} to {}",
                            shape.head_dim, shape.dim_v(), kMinDim, kMaxDim)};
    if (shape.dropout_p > 0)
      return {false, "dropout",
              fmt::format("dropout_p is {}; the hopper backend has no dropout", shape.dropout_p)};
    return {};
  }

  mutable KernelMemo kernels_;
  std::unique_ptr<Backend> portable_ = make_portable_backend();
};

}  // namespace

std::unique_ptr<Backend> make_hopper_backend() { return std::make_unique<HopperBackend>(); }

}  // namespace bdcp::attention
