// Steps on a GPU that is not there: over the fake libcuda. Kernels are compiled, but never run.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/dynamic_library.h"
#include "jit/kernel_cache.h"
#include "step/world.h"

namespace bdcp::test {

inline CallShape shape_of(int heads_q, int heads_kv, int head_dim) {
  CallShape shape;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.head_dim = head_dim;
  return shape;
}

/// The parameter is the backend.
class FakeGpuStep : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    library_ = device::DynamicLibrary::open({"libcuda.so.1"}, BDCP_FAKE_LIBCUDA, {}, &why);
    ASSERT_TRUE(library_) << why;
    ASSERT_NE(library_->symbol("fake_reset"), nullptr) << "a real driver is loaded: " << library_->path();
    call<void()>("fake_reset")();
    setenv("BDCP_LIBCUDA", BDCP_FAKE_LIBCUDA, 1);
    setenv("BDCP_CACHE_DIR", BDCP_BINARY_DIR "/test-kernel-cache", 1);
    why = jit::KernelCache({}, Env::from_process(), nullptr).why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
    runtime_.emplace(quiet_runtime(policy()));
  }
  static std::string policy(const std::string& more = "") {
    return std::string(R"({"attention": {"backend": ")") + GetParam() + "\"" + more + "}}";
  }
  Step begin() { return runtime_->begin_step(layout_, shapes_); }
  template <class F>
  F* call(const char* name) {
    return reinterpret_cast<F*>(library_->symbol(name));
  }

  int calls(std::initializer_list<const char*> functions) {
    int sum = 0;
    for (const char* function : functions) sum += call<int(const char*)>("fake_calls")(function);
    return sum;
  }
  int allocations() {
    return calls({"cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuStreamCreateWithPriority"});
  }
  int waits() { return calls({"cuStreamSynchronize", "cuEventSynchronize", "cuMemFree", "cuMemFreeHost"}); }
  int copies() { return calls({"cuMemcpyAsync", "cuMemcpy2DAsync"}); }

  /// Addresses that nothing reads, apart from each other.
  void* tensor() { return reinterpret_cast<void*>(next_ += std::uintptr_t{1} << 24); }
  void* rows_at() { return static_cast<char*>(tensor()) + shift_; }
  void run(const Step& step, int index, Stream stream = Stream::cuda(nullptr, 0)) {
    const CallShape& s = shapes_[static_cast<std::size_t>(index)];
    const std::int64_t rows = layout_.local_tokens();
    const auto queries = [&] { return TensorView::packed(rows_at(), s.dtype, rows, s.heads_q, s.head_dim); };
    const auto keys = [&] { return TensorView::packed(rows_at(), s.dtype, rows, s.heads_kv, s.head_dim); };
    ForwardArgs forward;
    forward.q = queries();
    forward.k = keys();
    forward.v = keys();
    forward.out = queries();
    forward.lse = LseView::packed(static_cast<float*>(tensor()), s.heads_q, rows);
    forward.workspace = {tensor(), step.workspace().forward};
    forward.shape = index;
    step.forward(forward, stream);
    if (!s.backward) return;
    BackwardArgs backward;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.out = forward.out;
    backward.dout = queries();
    backward.lse = forward.lse;
    backward.dq = queries();
    backward.dk = keys();
    backward.dv = keys();
    backward.workspace = {tensor(), step.workspace().backward};
    backward.shape = index;
    step.backward(backward, stream);
  }

  std::shared_ptr<const device::DynamicLibrary> library_;
  std::optional<Runtime> runtime_;
  std::vector<CallShape> shapes_{shape_of(8, 2, 64), shape_of(4, 4, 32)};
  DocLayout layout_ = DocLayout::from_lengths(std::vector<std::int64_t>{300, 20, 1000, 40, 7});
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  int shift_ = 0;  ///< bytes by which rows miss their alignment
};

}  // namespace bdcp::test
