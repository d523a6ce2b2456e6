// What a warm step costs the driver, over the fake libcuda. Kernels are compiled, but never run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "device/dynamic_library.h"
#include "jit/kernel_cache.h"
#include "step/world.h"

namespace bdcp::test {
namespace {

CallShape shape_of(int heads_q, int heads_kv, int head_dim) {
  CallShape shape;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.head_dim = head_dim;
  return shape;
}

class WarmStep : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    library_ = device::DynamicLibrary::open({"libcuda.so.1"}, BDCP_FAKE_LIBCUDA, {}, &why);
    ASSERT_TRUE(library_) << why;
    ASSERT_NE(library_->symbol("fake_reset"), nullptr) << "a real driver is loaded: " << library_->path();
    reinterpret_cast<void (*)()>(library_->symbol("fake_reset"))();
    setenv("BDCP_LIBCUDA", BDCP_FAKE_LIBCUDA, 1);
    setenv("BDCP_CACHE_DIR", BDCP_BINARY_DIR "/test-kernel-cache", 1);
    why = jit::KernelCache({}, Env::from_process(), nullptr).why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
    runtime_.emplace(quiet_runtime(std::string(R"({"attention": {"backend": ")") + GetParam() + R"("}})"));
  }
  Step begin() { return runtime_->begin_step(layout_, shapes_); }

  int calls(std::initializer_list<const char*> functions) {
    int sum = 0;
    for (const char* function : functions)
      sum += reinterpret_cast<int (*)(const char*)>(library_->symbol("fake_calls"))(function);
    return sum;
  }
  int allocations() {
    return calls({"cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuStreamCreateWithPriority"});
  }
  int waits() { return calls({"cuStreamSynchronize", "cuEventSynchronize", "cuMemFree", "cuMemFreeHost"}); }
  int copies() { return calls({"cuMemcpyAsync", "cuMemcpy2DAsync"}); }

  /// Addresses that nothing reads, apart from each other.
  void* tensor() { return reinterpret_cast<void*>(next_ += std::uintptr_t{1} << 24); }
  void run(const Step& step, int index) {
    const CallShape& s = shapes_[static_cast<std::size_t>(index)];
    const std::int64_t rows = layout_.local_tokens();
    const auto queries = [&] { return TensorView::packed(tensor(), s.dtype, rows, s.heads_q, s.head_dim); };
    const auto keys = [&] { return TensorView::packed(tensor(), s.dtype, rows, s.heads_kv, s.head_dim); };
    const Stream stream = Stream::cuda(nullptr, 0);
    ForwardArgs forward;
    forward.q = queries();
    forward.k = keys();
    forward.v = keys();
    forward.out = queries();
    forward.lse = LseView::packed(static_cast<float*>(tensor()), s.heads_q, rows);
    forward.workspace = {tensor(), step.workspace().forward};
    forward.shape = index;
    step.forward(forward, stream);
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
};

TEST_P(WarmStep, OneUploadAndNoAllocation) {
  for (int i = 0; i < 3; ++i) {
    const Step step = begin();
    for (const int shape : {0, 1}) run(step, shape);
  }
  const int allocated = allocations(), waited = waits(), copied = copies();
  for (int i = 1; i <= 5; ++i) {
    const Step step = begin();
    EXPECT_EQ(step.decision().backend, *parse_backend(GetParam()));
    EXPECT_EQ(copies(), copied + i);
    for (const int shape : {0, 1}) run(step, shape);
    EXPECT_EQ(copies(), copied + i);
  }
  EXPECT_EQ(allocations(), allocated);
  EXPECT_EQ(waits(), waited);
}

TEST_P(WarmStep, CallsLaunchAndNothingElse) {
  const Step step = begin();
  run(step, 0);
  const int launched = calls({"cuLaunchKernel"}), others = allocations() + waits() + copies(),
            events = calls({"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"});
  run(step, 0);
  EXPECT_GE(calls({"cuLaunchKernel"}), launched + 3);
  EXPECT_EQ(allocations() + waits() + copies(), others);
  EXPECT_EQ(calls({"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"}), events);
}

TEST_P(WarmStep, StepsLiveSideBySideAndEndInAnyOrder) {
  std::vector<Step> steps;
  for (int i = 0; i < 4; ++i) steps.push_back(begin());
  for (const Step& step : steps) run(step, 0);
  steps.erase(steps.begin() + 1);
  for (const Step& step : steps) run(step, 1);
  runtime_.reset();
  steps.erase(steps.begin());
  run(steps[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, WarmStep, ::testing::Values("portable", "reference"),
                         [](const auto& param) { return std::string(param.param); });

class AutoDevice : public WarmStep {
 protected:
  void TearDown() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) unsetenv(name);
  }
  /// The fake's devices are an sm_90 and an sm_86.
  std::string arch() const {
    const Runtime runtime = quiet_runtime(R"({"attention": {"backend": "reference"}})");
    return runtime.begin_step(layout_, shapes_).kernels().front().arch;
  }
};

TEST_P(AutoDevice, IsThatOfTheLocalRankUnderALauncher) {
  unsetenv("RANK");
  EXPECT_THAT(arch(), testing::StartsWith("sm_90"));
  setenv("RANK", "5", 1);
  setenv("WORLD_SIZE", "8", 1);
  EXPECT_THAT(arch(), testing::StartsWith("sm_90"));  // the launcher does not tell
  setenv("LOCAL_RANK", "1", 1);
  EXPECT_EQ(arch(), "sm_86");
  setenv("LOCAL_RANK", "4", 1);  // it shows each process some of the node's devices
  EXPECT_THAT(arch(), testing::StartsWith("sm_90"));
  setenv("LOCAL_RANK", "one", 1);
  EXPECT_THROW(arch(), Error);
}

INSTANTIATE_TEST_SUITE_P(OnTheFake, AutoDevice, testing::Values("reference"));

}  // namespace
}  // namespace bdcp::test
