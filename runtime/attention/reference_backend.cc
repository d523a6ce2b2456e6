#include <fmt/format.h>

#include "attention/backend.h"
#include "attention/call_checks.h"
#include "attention/device_list.h"
#include "attention/prepared_kernels.h"
#include "attention/reference_work.h"
#include "base/check.h"
#include "jit/kernel_info.h"
#include "kernel_templates/kernel_args.h"

namespace bdcp::attention {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kMaxHeadDim = 512;

enum Kernel { kForward, kDq, kDkv, kKernels };
constexpr const char* kNames[kKernels] = {"reference_forward", "reference_backward_dq",
                                          "reference_backward_dkv"};

int dtype_constant(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::f16 ? 1 : 2; }

jit::KernelSpec make_spec(Kernel kernel, const CallShape& shape, const Options& options,
                          const std::string& arch) {
  jit::KernelSpec spec;
  spec.kernel = kNames[kernel];
  spec.arch = arch;
  spec.add("dtype", dtype_constant(shape.dtype))
      .add("head_dim", shape.head_dim)
      .add("head_dim_v", shape.dim_v())
      .add("ratio", shape.heads_q / shape.heads_kv)
      .add_flag("dropout", shape.dropout_p > 0);
  if (kernel == kDkv) spec.add("payload", options.payload_f32 ? 0 : dtype_constant(shape.dtype));
  return spec;
}

/// In the order of Kernel.
std::vector<jit::KernelSpec> make_specs(const CallShape& shape, const Options& options,
                                        const std::string& arch) {
  std::vector<jit::KernelSpec> specs{make_spec(kForward, shape, options, arch)};
  if (!shape.backward) return specs;
  specs.push_back(make_spec(kDq, shape, options, arch));
  specs.push_back(make_spec(kDkv, shape, options, arch));
  return specs;
}

DeviceList<kernel::ReferenceItem> add_items(device::Tables& tables, const ReferenceWork::Items& items,
                                            std::size_t room) {
  std::vector<kernel::ReferenceItem> all = items.local;
  all.insert(all.end(), items.remote.begin(), items.remote.end());
  return {tables, all, items.local.size(), room};
}

class ReferenceAttention final : public PreparedAttention {
 public:
  ReferenceAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                     const PrepareContext& context, KernelMemo& memo)
      : shape_(shape),
        plan_(plan),
        payload_f32_(options.payload_f32),
        device_(context.device),
        tables_(context.tables) {
    const ReferenceWork work = make_reference_work(plan, shape);
    kernels_ =
        memo.get(shape, options, 0, context, [&] { return make_specs(shape, options, device_->facts().arch); });
    const GraphRoom& room = context.room;
    segments_ =
        DeviceList<kernel::Segment>(*context.tables, work.segments, work.segments.size(), room.segments());
    rows_ = add_items(*context.tables, work.rows, room.pieces(plan.rows, kReferenceRows));
    check_grid("blocks of rows", rows_, shape.heads_q);
    if (!shape.backward) return;
    keys_ = add_items(*context.tables, work.keys, room.pieces(plan.key_rows, kReferenceRows));
    check_grid("blocks of keys", keys_, shape.heads_kv);
  }

  std::size_t backward_workspace() const override {
    const std::size_t bytes = static_cast<std::size_t>(plan_.rows) * shape_.heads_q * sizeof(float);
    return (bytes + 255) / 256 * 256;  // delta
  }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call);
    kernel::ReferenceForwardArgs args = reference_args(shape_, plan_, call);
    args.segments = segments_.data();
    args.items = rows_.part(part);
    args.item_count = rows_.count();
    launch(kForward, rows_.size(part), shape_.heads_q, &args, stream);
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call, payload_f32_);
    require(call.workspace.bytes >= backward_workspace() &&
                (call.workspace.data != nullptr || backward_workspace() == 0),
            ErrorCode::invalid_argument, [&] {
              return fmt::format("backward workspace has {} bytes, needs {}", call.workspace.bytes,
                                 backward_workspace());
            });
    kernel::ReferenceBackwardArgs args = reference_args(shape_, plan_, call);
    args.segments = segments_.data();
    args.items = rows_.part(part);
    args.item_count = rows_.count();
    launch(kDq, rows_.size(part), shape_.heads_q, &args, stream);
    args.items = keys_.part(part);
    args.item_count = keys_.count();
    launch(kDkv, keys_.size(part), shape_.heads_kv, &args, stream);
  }

  std::vector<KernelInfo> kernels() const override {
    std::vector<KernelInfo> infos;
    for (const PreparedKernel& kernel : *kernels_) infos.push_back(jit::info_of(*kernel.compiled));
    return infos;
  }

 private:
  void launch(Kernel kernel, std::size_t items, int heads, void* args, Stream stream) const {
    if (items == 0) return;
    tables_->use(stream.handle);
    attention::launch(*device_, (*kernels_)[kernel],
                      {static_cast<unsigned>(items * static_cast<std::size_t>(heads)), 1, 1}, kThreads, args,
                      stream);
  }

  CallShape shape_;
  plan::RankPlan plan_;
  bool payload_f32_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const device::Tables> tables_;
  std::shared_ptr<const PreparedKernels> kernels_;
  DeviceList<kernel::Segment> segments_;
  DeviceList<kernel::ReferenceItem> rows_, keys_;
};

class ReferenceBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::reference; }

  plan::Verdict can(const CallShape& shape, const Target& target, const Options&) const override {
    if (target.host())
      return {false, "needs_cuda", "the reference backend is a CUDA kernel; the call runs on the host"};
    if (target.facts->cc_major < 7)
      return {false, "arch",
              fmt::format("CUDA device {} is {}, the reference backend needs sm_70 or newer",
                          target.facts->ordinal, target.facts->arch)};
    return check_limits(shape);
  }

  std::vector<jit::KernelSpec> required_kernels(const CallShape& shape, const std::string& arch, bool,
                                                const Options& options) const override {
    if (!check_limits(shape).ok) return {};
    return make_specs(shape, options, arch);
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext& context) const override {
    require(context.device != nullptr && context.cache != nullptr && context.tables != nullptr,
            ErrorCode::invalid_argument,
            "the reference backend needs a CUDA device, a kernel cache and tables");
    const plan::Verdict verdict = can(shape, Target{&context.device->facts()}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    return std::make_shared<ReferenceAttention>(shape, plan, options, context, kernels_);
  }

 private:
  static plan::Verdict check_limits(const CallShape& shape) {
    plan::Verdict verdict = check_shape(shape);
    if (!verdict.ok) return verdict;
    if (shape.head_dim > kMaxHeadDim || shape.dim_v() > kMaxHeadDim)
      return {false, "head_dim",
              fmt::format("head_dim {} and head_dim_v {}: the reference backend takes 1 to {}", shape.head_dim,
                          shape.dim_v(), kMaxHeadDim)};
    return verdict;
  }

  mutable KernelMemo kernels_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace bdcp::attention
