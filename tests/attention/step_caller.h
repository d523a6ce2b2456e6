// Whole calls of a Step on device tensors, for the gpu tests.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/device_harness.h"
#include "bdcp/runtime.h"

namespace bdcp::test {

/// Device tensors of a whole call on a stream of its own. They stay where they are.
class Caller {
 public:
  Caller(std::shared_ptr<device::Device> device, const Step& step, const Case& c, const Data& data)
      : device_(std::move(device)), mirror_(device_, 0), queue_(device_->create_stream()) {
    outputs_ = make_outputs(c);
    forward_.q = backward_.q = mirror_.tensor(data.q.view());
    forward_.k = backward_.k = mirror_.tensor(data.k.view());
    forward_.v = backward_.v = mirror_.tensor(data.v.view());
    backward_.dout = mirror_.tensor(data.dout.view());
    forward_.out = mirror_.tensor(outputs_.out.view());
    backward_.out = forward_.out;
    forward_.lse = mirror_.lse(outputs_.lse.view());
    backward_.lse = {forward_.lse.data, forward_.lse.heads, forward_.lse.tokens, forward_.lse.head_stride};
    backward_.dq = mirror_.tensor(outputs_.dq.view());
    backward_.dk = mirror_.tensor(outputs_.dk.view());
    backward_.dv = mirror_.tensor(outputs_.dv.view());
    const WorkspaceSizes sizes = step.workspace();
    forward_.workspace = backward_.workspace = mirror_.workspace(std::max(sizes.forward, sizes.backward));
  }
  Stream stream() const { return Stream::cuda(queue_.get(), device_->facts().ordinal); }
  /// Enqueues a forward, and a backward if `both`.
  void call(const Step& step, bool both) {
    step.forward(forward_, stream());
    if (both) step.backward(backward_, stream());
  }
  /// Other inputs of the same shapes.
  void load(const Data& data) {
    const auto put = [&](const ConstTensorView& x, const HostTensor& from) {
      device_->copy_async(const_cast<void*>(x.data), from.view().data, bytes_of(x), queue_.get());
    };
    put(forward_.q, data.q);
    put(forward_.k, data.k);
    put(forward_.v, data.v);
    put(backward_.dout, data.dout);
    wait();  // the host memory is the caller's
  }
  /// Garbage in all outputs and the workspace.
  void poison() {
    const auto fill = [&](void* data, std::size_t bytes) {
      if (bytes > 0) device_->fill_async(data, 0xFF, bytes, queue_.get());
    };
    for (const TensorView& x : {forward_.out, backward_.dq, backward_.dk, backward_.dv})
      fill(x.data, bytes_of(x));
    fill(forward_.lse.data, outputs_.lse.data.size() * sizeof(float));
    fill(forward_.workspace.data, forward_.workspace.bytes);
  }
  /// What is there once everything enqueued is done.
  const Outputs& fetch() {
    wait();
    const auto get = [&](HostTensor& to, const TensorView& x) {
      device_->copy_async(to.data(), x.data, bytes_of(x), queue_.get());
    };
    get(outputs_.out, forward_.out);
    get(outputs_.dq, backward_.dq);
    get(outputs_.dk, backward_.dk);
    get(outputs_.dv, backward_.dv);
    device_->copy_async(outputs_.lse.data.data(), forward_.lse.data, outputs_.lse.data.size() * sizeof(float),
                        queue_.get());
    wait();
    return outputs_;
  }
  /// A call from garbage in all outputs and the workspace.
  const Outputs& fresh(const Step& step) {
    poison();
    call(step, true);
    return fetch();
  }
  void wait() { device_->synchronize(queue_.get()); }
  const TensorView& out() const { return forward_.out; }

 private:
  static std::size_t bytes_of(const ConstTensorView& x) {
    return static_cast<std::size_t>(x.tokens * x.heads * x.dim) * size_of(x.dtype);
  }
  std::shared_ptr<device::Device> device_;
  Outputs outputs_;
  Mirror mirror_;
  device::OwnedStream queue_;
  ForwardArgs forward_;
  BackwardArgs backward_;
};

/// Steps of one backend.
class StepGpu : public BackendGpu {
 protected:
  Runtime runtime(bool deterministic) const {
    Policy::Sources sources;
    sources.ignore_env = true;
    sources.code = {{"attention.backend", std::string(to_string(GetParam()))},
                    {"on_downgrade.backend_unavailable", "silent"},
                    {"attention.deterministic", deterministic ? "true" : "false"},
                    {"kernels.cache_dir", std::string(BDCP_BINARY_DIR) + "/test-kernel-cache"}};
    RuntimeOptions options;
    options.policy = Policy::load(sources);
    options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
    return Runtime::create(std::move(options));
  }
  Step begin(const Runtime& runtime, const Case& c, StepOptions options = {}) const {
    options.device = device_->facts().ordinal;
    return runtime.begin_step(
        DocLayout::from_cu_seqlens(c.layout.cu_q, {.world_size = 1, .padding_tokens = c.layout.pad_q}), c.shape,
        {}, options);
  }
};

}  // namespace bdcp::test
