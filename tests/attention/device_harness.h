// CUDA backends under host tensors, for the gpu tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention/covering_cases.h"
#include "attention/harness.h"

namespace bdcp::test {

using attention::Part;

// Device copies of host tensors for the length of one call; results are copied back by download().
class Mirror {
 public:
  /// `offset`: bytes by which f32 tensors miss a 256-byte boundary; 16-bit ones miss it by half of that.
  Mirror(std::shared_ptr<device::Device> device, std::size_t offset)
      : device_(std::move(device)), offset_(offset) {}

  template <class View>
  View tensor(View view) {
    if (!view.data || view.tokens * view.heads * view.dim == 0) return view;
    const std::int64_t elements =
        (view.tokens - 1) * view.token_stride + (view.heads - 1) * view.head_stride + view.dim;
    View copy = view;
    copy.data = mirror(const_cast<void*>(view.data), static_cast<std::size_t>(elements) * size_of(view.dtype),
                       !std::is_same_v<View, ConstTensorView>, offset_ * size_of(view.dtype) / sizeof(float));
    return copy;
  }
  template <class View>
  View lse(View view) {
    if (!view.data || view.tokens * view.heads == 0) return view;
    View copy = view;
    copy.data = static_cast<decltype(view.data)>(mirror(
        const_cast<float*>(view.data), static_cast<std::size_t>(view.heads * view.head_stride) * sizeof(float),
        std::is_same_v<View, LseView>, offset_));
    return copy;
  }
  BufferView workspace(std::size_t bytes) {
    std::vector<unsigned char> poison(bytes, 0xFF);
    return {mirror(poison.data(), bytes, false, 0), bytes};
  }
  void download() {
    device_->synchronize(nullptr);
    std::vector<unsigned char> guard(kGuard);
    for (const Copy& copy : copies_) {
      if (copy.output) device_->download(copy.host, copy.on_device, copy.bytes);
      for (const unsigned char* at : {copy.on_device - kGuard, copy.on_device + copy.bytes}) {
        device_->download(guard.data(), at, kGuard);
        EXPECT_TRUE(std::all_of(guard.begin(), guard.end(), [](unsigned char b) { return b == 0xFF; }))
            << "memory outside a tensor of " << copy.bytes << " bytes was written";
      }
    }
  }

 private:
  /// NaN bytes around every buffer: whatever is read there shows, and nothing may be written.
  static constexpr std::size_t kGuard = 256;
  struct Copy {
    void* host;
    const unsigned char* on_device;
    std::size_t bytes;
    bool output;
  };
  void* mirror(void* host, std::size_t bytes, bool output, std::size_t offset) {
    std::vector<unsigned char> all(bytes + offset + 2 * kGuard, 0xFF);
    if (bytes > 0) std::memcpy(all.data() + kGuard + offset, host, bytes);
    buffers_.push_back(device_->allocate(all.size()));
    device_->upload(buffers_.back().get(), all.data(), all.size());
    unsigned char* to = static_cast<unsigned char*>(buffers_.back().get()) + kGuard + offset;
    copies_.push_back({host, to, bytes, output});
    return to;
  }
  std::shared_ptr<device::Device> device_;
  std::size_t offset_;
  std::list<device::Buffer> buffers_;
  std::vector<Copy> copies_;
};

/// The same calls on device copies.
inline attention::ForwardCall on_device(const attention::ForwardCall& host, Mirror& mirror) {
  attention::ForwardCall call = host;
  for (ConstTensorView* x : {&call.q, &call.k, &call.v, &call.remote_k, &call.remote_v}) *x = mirror.tensor(*x);
  call.out = mirror.tensor(call.out);
  call.lse = mirror.lse(call.lse);
  return call;
}
inline attention::BackwardCall on_device(const attention::BackwardCall& host, Mirror& mirror) {
  attention::BackwardCall call = host;
  for (ConstTensorView* x : {&call.q, &call.k, &call.v, &call.remote_k, &call.remote_v, &call.out, &call.dout})
    *x = mirror.tensor(*x);
  call.lse = mirror.lse(call.lse);
  for (TensorView* x :
       {&call.dq, &call.dk, &call.dv, &call.shared_dk, &call.shared_dv, &call.remote_dk, &call.remote_dv})
    *x = mirror.tensor(*x);
  return call;
}

// A prepared CUDA backend that takes host tensors.
class OnDevice final : public attention::PreparedAttention {
 public:
  OnDevice(std::shared_ptr<const attention::PreparedAttention> prepared, std::shared_ptr<device::Device> device,
           std::size_t offset)
      : prepared_(std::move(prepared)), device_(std::move(device)), offset_(offset) {}
  void forward(const attention::ForwardCall& host, Part part, Stream) const override {
    Mirror mirror(device_, offset_);
    attention::ForwardCall call = on_device(host, mirror);
    call.workspace = forward_.of(part, prepared_->forward_workspace(), device_);
    prepared_->forward(call, part, stream());
    mirror.download();
  }
  void backward(const attention::BackwardCall& host, Part part, Stream) const override {
    Mirror mirror(device_, offset_);
    attention::BackwardCall call = on_device(host, mirror);
    call.workspace = backward_.of(part, prepared_->backward_workspace(), device_);
    prepared_->backward(call, part, stream());
    mirror.download();
  }

 private:
  /// The same memory for all parts of a call, poisoned before the first.
  class Workspace {
   public:
    BufferView of(Part part, std::size_t bytes, const std::shared_ptr<device::Device>& device) {
      bool& seen = seen_[static_cast<int>(part)];
      if (!mirror_ || seen) {
        mirror_.emplace(device, 0);
        view_ = mirror_->workspace(bytes);
        std::fill(std::begin(seen_), std::end(seen_), false);
      }
      seen = true;
      return view_;
    }

   private:
    std::optional<Mirror> mirror_;
    BufferView view_;
    bool seen_[2] = {};
  };

  Stream stream() const { return Stream::cuda(nullptr, device_->facts().ordinal); }
  std::shared_ptr<const attention::PreparedAttention> prepared_;
  std::shared_ptr<device::Device> device_;
  std::size_t offset_;
  mutable Workspace forward_, backward_;
};

/// A CUDA device, a compiler and one backend; skips where any is missing.
class GpuFixture : public ::testing::Test {
 protected:
  explicit GpuFixture(std::unique_ptr<attention::Backend> backend) : backend_(std::move(backend)) {}
  void SetUp() override {
    std::string why;
    driver_ = device::Driver::open(Env::from_process(), &why);
    if (!driver_) GTEST_SKIP() << "no CUDA device: " << why;
    device_ = driver_->device(0);
    pool_ = std::make_shared<device::TablePool>(device_);
    counters_ = std::make_shared<device::StreamCounters>(device_);
    jit::CacheOptions options;
    options.cache_dir = std::string(BDCP_BINARY_DIR) + "/test-kernel-cache";
    cache_ = std::make_unique<jit::KernelCache>(options, Env::from_process(), nullptr);
    why = cache_->why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  /// For calls with device tensors.
  std::shared_ptr<const attention::PreparedAttention> prepare_on_device(
      const CallShape& shape, const plan::RankPlan& plan, const attention::Options& options = {}) {
    const auto tables = pool_->make_tables();
    const auto note = [this](const Downgrade& downgrade) { downgrades_.emplace_back(downgrade.code); };
    auto prepared = backend_->prepare(shape, plan, options,
                                      {.device = device_,
                                       .cache = cache_.get(),
                                       .on_downgrade = note,
                                       .tables = tables,
                                       .counters = counters_,
                                       .heads_at_once = heads_at_once_,
                                       .arrival_rate = arrival_rate_});
    tables->upload();
    return prepared;
  }
  /// For calls with host tensors.
  std::shared_ptr<const attention::PreparedAttention> prepare(const CallShape& shape,
                                                              const plan::RankPlan& plan,
                                                              const attention::Options& options = {}) {
    return std::make_shared<OnDevice>(prepare_on_device(shape, plan, options), device_, offset_);
  }
  /// Why the backend does not take a call, or empty.
  std::string refuses(const CallShape& shape, const attention::Options& options = {}) const {
    const plan::Verdict verdict = backend_->can(shape, attention::Target{&device_->facts()}, options);
    return verdict.ok ? std::string() : verdict.code;
  }
  /// Compiles whatever these may ask for, on all cores.
  void warm(const std::vector<std::pair<CallShape, attention::Options>>& calls) {
    std::vector<jit::KernelSpec> specs;
    for (const auto& [shape, options] : calls) {
      if (!refuses(shape, options).empty()) continue;
      for (auto& spec : backend_->required_kernels(shape, device_->facts().arch, true, options))
        specs.push_back(std::move(spec));
    }
    std::vector<std::string> errors;
    cache_->get_all(specs, &errors);
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  Outputs run_device(const Case& c, const Data& data, const attention::Options& options = {}) {
    return run(*prepare(c.shape, single_rank_plan(c.layout), options), c, data);
  }

  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<device::TablePool> pool_;
  std::shared_ptr<device::StreamCounters> counters_;
  std::unique_ptr<jit::KernelCache> cache_;
  std::unique_ptr<attention::Backend> backend_;
  std::vector<std::string> downgrades_;  ///< codes, of all prepared calls
  std::size_t offset_ = 4;               ///< only element alignment is promised
  int heads_at_once_ = 0;                ///< see attention::PrepareContext, as the next one
  std::int64_t arrival_rate_ = attention::kNodeArrivalRate;
};

/// The CUDA backends of this build: tests with this parameter reach every one that is added.
inline std::vector<BackendKind> cuda_backends() {
  std::vector<BackendKind> kinds;
  for (const auto& backend : attention::make_backends())
    if (backend->kind() != BackendKind::host) kinds.push_back(backend->kind());
  return kinds;
}
/// Those on tensor cores.
inline std::vector<BackendKind> fast_backends() {
  std::vector<BackendKind> kinds = cuda_backends();
  std::erase(kinds, BackendKind::reference);
  return kinds;
}
inline std::string backend_name(const ::testing::TestParamInfo<BackendKind>& info) {
  return std::string(to_string(info.param));
}

class BackendGpu : public GpuFixture, public ::testing::WithParamInterface<BackendKind> {
 protected:
  BackendGpu() : GpuFixture(find()) { offset_ = 0; }
  void SetUp() override {
    GpuFixture::SetUp();
    if (IsSkipped()) return;
    if (refuses(make_shape(1, 1, 64, DType::bf16)) == "arch")
      GTEST_SKIP() << "the device is " << device_->facts().arch << ", which the backend has no kernels for";
  }
  bool reference() const { return GetParam() == BackendKind::reference; }
  /// Whether two runs give the same dQ.
  bool same_dq(const attention::Options& options) const { return options.deterministic || reference(); }
  /// Which results of other documents keep their bits beside a poisoned one. Hopper's backward does tiles that
  /// such a document shares again, document by document, which adds up in other groups.
  SameBits same_bits_isolated(const attention::Options& options) const {
    const bool again = GetParam() == BackendKind::hopper;
    return {.dq = !again && same_dq(options), .dk_dv = !again};
  }

 private:
  static std::unique_ptr<attention::Backend> find() {
    for (auto& backend : attention::make_backends())
      if (backend->kind() == GetParam()) return std::move(backend);
    return nullptr;
  }
};

}  // namespace bdcp::test
