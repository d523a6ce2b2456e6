// What a warm step costs the driver, over the fake libcuda. Kernels are compiled, but never run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "step/fake_gpu_step.h"

namespace bdcp::test {
namespace {

using WarmStep = FakeGpuStep;

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
  const int launched = calls({"cuLaunchKernel", "cuLaunchKernelEx"}),
            others = allocations() + waits() + copies(),
            events = calls({"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"});
  run(step, 0);
  EXPECT_GE(calls({"cuLaunchKernel", "cuLaunchKernelEx"}), launched + 3);
  EXPECT_EQ(allocations() + waits() + copies(), others);
  EXPECT_EQ(calls({"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"}), events);
}

TEST_P(WarmStep, ACallMakesTheContextCurrentOnceAndGivesTheThreadItsOwnBack) {
  const Step step = begin();
  run(step, 0);
  const int pushed = calls({"cuCtxPushCurrent"});
  run(step, 0);
  EXPECT_EQ(calls({"cuCtxPushCurrent"}), pushed + 2);  // forward, backward
  EXPECT_EQ(call<int()>("fake_depth")(), 0);
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

INSTANTIATE_TEST_SUITE_P(Backends, WarmStep, ::testing::Values("hopper", "portable", "reference"),
                         [](const auto& param) { return std::string(param.param); });

using HopperStep = FakeGpuStep;

TEST_P(HopperStep, TheFirstMisalignedCallMakesTheListsOfPortable) {
  const Step step = begin();
  for (const int shape : {0, 1}) run(step, shape);
  const int copied = copies();
  shift_ = 2;
  for (int i = 0; i < 3; ++i) {
    run(step, 0);
    EXPECT_EQ(copies(), copied + 1);
  }
  run(step, 1);
  EXPECT_EQ(copies(), copied + 2);
}

INSTANTIATE_TEST_SUITE_P(OnTheFake, HopperStep, testing::Values("hopper"));

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
