// The Hopper backend: wgmma and TMA. Calls whose tensors TMA cannot read are the portable backend's: the two
// agree on what LSE means.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>

#include "attention/backend.h"
#include "attention/call_checks.h"
#include "attention/hopper_backward.h"
#include "attention/hopper_config.h"
#include "attention/hopper_forward.h"
#include "attention/prepared_kernels.h"
#include "base/check.h"
#include "jit/kernel_info.h"

namespace bdcp::attention {
namespace {

constexpr int kMinDim = 8, kMaxDim = 256;

HopperLayout layout_of(const plan::RankPlan& plan, const Options& options) {
  // Batch invariance: the block size must not depend on the layout.
  return options.batch_invariant ? HopperLayout::long_docs : hopper_layout(plan::classify(plan));
}

class HopperAttention final : public PreparedAttention {
 public:
  HopperAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                  const PrepareContext& context, KernelMemo& memo,
                  std::shared_ptr<const PreparedAttention> portable)
      : shape_(shape),
        plan_(plan),
        payload_f32_(options.payload_f32),
        device_(context.device),
        tables_(context.tables),
        counters_(context.counters),
        on_downgrade_(context.on_downgrade),
        portable_(std::move(portable)) {
    const HopperLayout layout = layout_of(plan, options);
    const bool whole = shape.backward && has_whole_rows_only(shape, plan, options, context.room);
    HopperForwardWork work = make_forward_work(shape, plan, layout, options, context);
    const bool staged = work.states > 0;
    kernels_ = memo.get(shape, options, (static_cast<int>(layout) * 2 + whole) * 2 + staged, context, [&] {
      const std::string& arch = device_->facts().arch;
      std::vector<jit::KernelSpec> specs{hopper_forward_spec(shape, arch, layout, staged)};
      if (shape.backward)
        for (jit::KernelSpec& spec : hopper_backward_specs(shape, whole, arch, options))
          specs.push_back(std::move(spec));
      return specs;
    });
    forward_.emplace(shape, plan, layout, std::move(work), context, (*kernels_)[kForward]);
    if (shape.backward)
      backward_.emplace(shape, plan, whole, options, context, std::span(*kernels_).subspan(kForward + 1));
  }

  std::size_t forward_workspace() const override {
    return std::max(portable_->forward_workspace(), forward_->workspace());
  }
  std::size_t backward_workspace() const override {
    return std::max(portable_->backward_workspace(), backward_ ? backward_->workspace() : 0);
  }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call);
    if (!forward_->has_work(part)) return;
    const bool captured = tables_->use(stream.handle);
    if (!HopperForward::takes(call)) {
      note_misaligned();
      return portable_->forward(call, part, stream);
    }
    check_workspace(call.workspace, forward_->workspace());
    forward_->launch(call, part, stream, counters_->of(stream.handle, captured));
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call, payload_f32_);
    if (!backward_->takes(call)) {
      note_misaligned();
      return portable_->backward(call, part, stream);
    }
    tables_->use(stream.handle);
    backward_->launch(call, part, stream);
  }

  std::vector<KernelInfo> kernels() const override {
    std::vector<KernelInfo> infos;
    for (const PreparedKernel& kernel : *kernels_) infos.push_back(jit::info_of(*kernel.compiled));
    for (KernelInfo& info : portable_->kernels()) infos.push_back(std::move(info));
    return infos;
  }

 private:
  static constexpr std::size_t kForward = 0;  // kernels of the backward follow

  void note_misaligned() const {
    // Marked only once it has been taken note of: a policy that refuses it refuses every call.
    if (!misaligned_.load() && on_downgrade_)
      on_downgrade_({"hopper", "portable", "misaligned",
                     "a tensor's rows do not all start on 16 bytes; TMA cannot read it", -1});
    misaligned_.store(true);
  }

  CallShape shape_;
  plan::RankPlan plan_;
  bool payload_f32_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const device::Tables> tables_;
  std::shared_ptr<device::StreamCounters> counters_;
  std::function<void(const Downgrade&)> on_downgrade_;
  std::shared_ptr<const PreparedAttention> portable_;
  std::shared_ptr<const PreparedKernels> kernels_;
  std::optional<HopperForward> forward_;
  std::optional<HopperBackward> backward_;
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
    return portable_->can(shape, target, options);
  }

  std::vector<jit::KernelSpec> required_kernels(const CallShape& shape, const std::string& arch,
                                                bool distributed, const Options& options) const override {
    std::vector<jit::KernelSpec> specs;
    if (arch != "sm_90a" || !check_limits(shape).ok) return specs;
    const auto add = [&](jit::KernelSpec spec) {
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(std::move(spec));
    };
    for (int i = 0; i < kHopperLayouts; ++i) {
      const auto layout = static_cast<HopperLayout>(i);
      if (options.batch_invariant && layout != HopperLayout::long_docs) continue;
      add(hopper_forward_spec(shape, arch, layout));
    }
    if (distributed) add(hopper_forward_spec(shape, arch, HopperLayout::long_docs, /*staged=*/true));
    if (shape.backward)
      for (const bool whole : {false, true}) {
        if (whole && options.batch_invariant) continue;
        for (jit::KernelSpec& spec : hopper_backward_specs(shape, whole, arch, options)) add(std::move(spec));
      }
    for (jit::KernelSpec& spec : portable_->required_kernels(shape, arch, distributed, options))
      specs.push_back(std::move(spec));
    return specs;
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext& context) const override {
    require(context.device != nullptr && context.cache != nullptr && context.tables != nullptr &&
                context.counters != nullptr,
            ErrorCode::invalid_argument,
            "the hopper backend needs a CUDA device, a kernel cache, tables and counters");
    const plan::Verdict verdict = can(shape, Target{&context.device->facts()}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    // Most steps never leave a call to it. In a graph class it has its place among the lists.
    PrepareContext for_portable = context;
    for_portable.lists_later = !context.room.wanted();
    return std::make_shared<HopperAttention>(shape, plan, options, context, kernels_,
                                             portable_->prepare(shape, plan, options, for_portable));
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
