// The same bits from every one of 200 calls, while other streams keep the device busy
// (Dao-AILab/flash-attention#1678: semaphores that are not reset; #1596, #1766: the deterministic flag is
// lost).
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "attention/device_harness.h"
#include "bdcp/runtime.h"

namespace bdcp::test {
namespace {

constexpr int kRepeats = 200, kCallers = 2, kLoads = 2;

/// Device tensors of a whole call on a stream of its own.
class Caller {
 public:
  Caller(std::shared_ptr<device::Device> device, const Step& step, const Case& c, const Data& data)
      : device_(std::move(device)), step_(step), c_(c), mirror_(device_, 0), queue_(device_->create_stream()) {
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
  /// Enqueues a forward, and a backward if `both`.
  void call(bool both) {
    const Stream stream = Stream::cuda(queue_.get(), device_->facts().ordinal);
    step_.forward(forward_, stream);
    if (both) step_.backward(backward_, stream);
  }
  /// A call from garbage in all outputs and the workspace.
  const Outputs& fresh() {
    const auto poison = [&](void* data, std::size_t bytes) {
      if (bytes > 0) device_->fill_async(data, 0xFF, bytes, queue_.get());
    };
    for (const TensorView& x : {forward_.out, backward_.dq, backward_.dk, backward_.dv})
      poison(x.data, static_cast<std::size_t>(x.tokens * x.heads * x.dim) * size_of(x.dtype));
    poison(forward_.lse.data, outputs_.lse.data.size() * sizeof(float));
    poison(forward_.workspace.data, forward_.workspace.bytes);
    call(true);
    wait();
    const auto fetch = [&](HostTensor& to, const TensorView& x) {
      device_->copy_async(to.data(), x.data,
                          static_cast<std::size_t>(x.tokens * x.heads * x.dim) * size_of(x.dtype),
                          queue_.get());
    };
    fetch(outputs_.out, forward_.out);
    fetch(outputs_.dq, backward_.dq);
    fetch(outputs_.dk, backward_.dk);
    fetch(outputs_.dv, backward_.dv);
    device_->copy_async(outputs_.lse.data.data(), forward_.lse.data, outputs_.lse.data.size() * sizeof(float),
                        queue_.get());
    wait();
    return outputs_;
  }
  void wait() { device_->synchronize(queue_.get()); }

 private:
  std::shared_ptr<device::Device> device_;
  const Step& step_;
  Case c_;
  Outputs outputs_;
  Mirror mirror_;
  device::OwnedStream queue_;
  ForwardArgs forward_;
  BackwardArgs backward_;
};

class RepeatGpu : public BackendGpu {
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
  Step begin(const Runtime& runtime, const Case& c) const {
    StepOptions options;
    options.device = device_->facts().ordinal;
    return runtime.begin_step(
        DocLayout::from_cu_seqlens(c.layout.cu_q, {.world_size = 1, .padding_tokens = c.layout.pad_q}), c.shape,
        {}, options);
  }
  void repeat(bool deterministic) {
    const Runtime runtime = this->runtime(deterministic);
    Case load;
    load.layout = from_lengths(std::vector<std::int64_t>{1500, 40, 500}, 0, "load");
    load.shape = make_shape(8, 2, 64, DType::bf16);
    const Step load_step = begin(runtime, load);
    const Data load_data = make_data(load);

    for (const CallShape& shape : {make_shape(8, 2, 64, DType::bf16), make_shape(3, 1, 128, DType::f16)}) {
      Case c;
      c.layout = from_lengths(std::vector<std::int64_t>{300, 77, 1, 200, 20, 30, 0, 513}, 3, "repeat");
      c.shape = shape;
      SCOPED_TRACE(describe(c));
      const Step step = begin(runtime, c);
      const BackendKind backend = step.decision().backend;
      if (!deterministic) {
        ASSERT_EQ(backend, GetParam());
      }
      const bool with_dq = deterministic || backend == BackendKind::reference;
      const Data data = make_data(c);
      const Outputs first = Caller(device_, step, c, data).fresh();
      expect_oracle(c, data, first);

      std::atomic<bool> stop{false};
      std::atomic<int> calls{0}, different{0};
      std::mutex mutex;
      std::string failure;
      const auto guarded = [&](const std::function<void()>& body) {
        try {
          body();
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          failure = error.what();
        }
      };
      std::vector<std::thread> callers, loads;
      for (int i = 0; i < kLoads; ++i)
        loads.emplace_back([&] {
          guarded([&] {
            Caller caller(device_, load_step, load, load_data);
            while (!stop) {
              for (int n = 0; n < 4; ++n) caller.call(true);
              caller.wait();
            }
          });
        });
      for (int i = 0; i < kCallers; ++i)
        callers.emplace_back([&] {
          guarded([&] {
            Caller caller(device_, step, c, data);
            while (calls++ < kRepeats) {
              const Outputs& again = caller.fresh();
              const bool same = again.out.same_bits(first.out) &&
                                same_bits(again.lse, first.lse, 0, c.layout.rows()) &&
                                again.dk.same_bits(first.dk) && again.dv.same_bits(first.dv) &&
                                (!with_dq || again.dq.same_bits(first.dq));
              if (!same) ++different;
            }
          });
        });
      for (std::thread& thread : callers) thread.join();
      stop = true;
      for (std::thread& thread : loads) thread.join();
      EXPECT_EQ(failure, "");
      EXPECT_EQ(different.load(), 0) << "calls of " << kRepeats << " with other bits, dQ "
                                     << (with_dq ? "compared" : "not compared");
    }
  }
};

TEST_P(RepeatGpu, SameBitsUnderLoad) { repeat(false); }
// A backend without deterministic dQ is replaced by one that has it.
TEST_P(RepeatGpu, SameBitsUnderLoadDeterministic) { repeat(true); }

INSTANTIATE_TEST_SUITE_P(Cuda, RepeatGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
