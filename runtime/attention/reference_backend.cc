#include <fmt/format.h>

#include "attention/backend.h"
#include "attention/call_checks.h"
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

std::vector<Kernel> kernels_for(const CallShape& shape) {
  if (!shape.backward) return {kForward};
  return {kForward, kDq, kDkv};
}

// A table of items on the device: local, then remote.
struct DeviceItems {
  device::Buffer buffer;
  std::size_t count[2] = {0, 0};
  const kernel::ReferenceItem* part(Part which) const {
    const auto* all = static_cast<const kernel::ReferenceItem*>(buffer.get());
    return which == Part::local ? all : all + count[0];
  }
  std::size_t size(Part which) const { return count[which == Part::local ? 0 : 1]; }
};

template <class T>
device::Buffer upload(device::Device& device, const std::vector<T>& values) {
  if (values.empty()) return {};
  device::Buffer buffer = device.allocate(values.size() * sizeof(T));
  device.upload(buffer.get(), values.data(), values.size() * sizeof(T));
  return buffer;
}

DeviceItems upload_items(device::Device& device, const ReferenceWork::Items& items) {
  std::vector<kernel::ReferenceItem> all = items.local;
  all.insert(all.end(), items.remote.begin(), items.remote.end());
  return {upload(device, all), {items.local.size(), items.remote.size()}};
}

class ReferenceAttention final : public PreparedAttention {
 public:
  ReferenceAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                     const PrepareContext& context)
      : shape_(shape), plan_(plan), payload_f32_(options.payload_f32), device_(context.device) {
    const ReferenceWork work = make_reference_work(plan, shape);
    for (const Kernel kernel : kernels_for(shape)) {
      const jit::KernelSpec spec = make_spec(kernel, shape, options, device_->facts().arch);
      compiled_[kernel] = context.cache->get(spec);
      loaded_[kernel] = context.cache->load(spec, device_);
    }
    segments_ = upload(*device_, work.segments);
    rows_ = upload_items(*device_, work.rows);
    if (shape.backward) keys_ = upload_items(*device_, work.keys);
  }

  std::size_t backward_workspace() const override {
    const std::size_t bytes = static_cast<std::size_t>(plan_.rows) * shape_.heads_q * sizeof(float);
    return (bytes + 255) / 256 * 256;  // delta
  }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    check_call(shape_, plan_, call);
    kernel::ReferenceForwardArgs args = reference_args(shape_, plan_, call);
    args.segments = static_cast<const kernel::Segment*>(segments_.get());
    args.items = rows_.part(part);
    launch(kForward, rows_.size(part), shape_.heads_q, &args, stream);
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    check_stream(*device_, stream);
    require(shape_.backward, ErrorCode::invalid_argument,
            "backward of a shape that was prepared with backward = false");
    check_call(shape_, plan_, call, payload_f32_);
    require(call.workspace.bytes >= backward_workspace() &&
                (call.workspace.data != nullptr || backward_workspace() == 0),
            ErrorCode::invalid_argument, [&] {
              return fmt::format("backward workspace has {} bytes, needs {}", call.workspace.bytes,
                                 backward_workspace());
            });
    kernel::ReferenceBackwardArgs args = reference_args(shape_, plan_, call);
    args.segments = static_cast<const kernel::Segment*>(segments_.get());
    args.items = rows_.part(part);
    launch(kDq, rows_.size(part), shape_.heads_q, &args, stream);
    args.items = keys_.part(part);
    launch(kDkv, keys_.size(part), shape_.heads_kv, &args, stream);
  }

  std::vector<KernelInfo> kernels() const override {
    std::vector<KernelInfo> infos;
    for (const Kernel kernel : kernels_for(shape_)) {
      infos.push_back(jit::info_of(*compiled_[kernel]));
    }
    return infos;
  }

 private:
  void launch(Kernel kernel, std::size_t items, int heads, void* args, Stream stream) const {
    if (items == 0) return;
    void* parameters[] = {args};
    device_->launch(*loaded_[kernel], {static_cast<unsigned>(items * static_cast<std::size_t>(heads)), 1, 1},
                    {kThreads, 1, 1}, 0, stream.handle, parameters);
  }

  CallShape shape_;
  plan::RankPlan plan_;
  bool payload_f32_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<const jit::CompiledKernel> compiled_[kKernels];
  std::shared_ptr<const device::LoadedKernel> loaded_[kKernels];
  device::Buffer segments_;
  DeviceItems rows_, keys_;
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
    std::vector<jit::KernelSpec> specs;
    if (!check_limits(shape).ok) return specs;
    for (const Kernel kernel : kernels_for(shape)) specs.push_back(make_spec(kernel, shape, options, arch));
    return specs;
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext& context) const override {
    require(context.device != nullptr && context.cache != nullptr, ErrorCode::invalid_argument,
            "the reference backend needs a CUDA device and a kernel cache");
    const plan::Verdict verdict = can(shape, Target{&context.device->facts()}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    return std::make_shared<ReferenceAttention>(shape, plan, options, context);
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
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace bdcp::attention
