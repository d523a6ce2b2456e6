// Driver and Device over a fake libcuda: contexts, error mapping, missing functions, fork.
#include "device/fake_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace bdcp::device {
namespace {

using ::testing::HasSubstr;

TEST_F(FakeDriver, Facts) {
  const DeviceFacts hopper = device(0)->facts();
  EXPECT_EQ(hopper.arch, "sm_90a");
  EXPECT_EQ(hopper.name, "Fake GPU");
  EXPECT_EQ(hopper.driver_version, 12080);
  EXPECT_EQ(hopper.total_memory, 1u << 30);
  EXPECT_EQ(hopper.uuid, "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
  EXPECT_EQ(device(1)->facts().arch, "sm_86");
  EXPECT_EQ(device(1)->facts().uuid, "b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf");
  hide("cuDeviceGetUuid");
  EXPECT_EQ(device()->facts().uuid, "");
}

TEST_F(FakeDriver, OpenFailuresHaveReasons) {
  std::string why;
  fail("cuInit", 100);
  EXPECT_EQ(open(&why), nullptr);
  EXPECT_THAT(why, HasSubstr("cuInit"));
  EXPECT_THAT(why, HasSubstr("100"));
  call<void()>("fake_reset")();
  fail("cuDeviceGetCount", 3);
  EXPECT_EQ(open(&why), nullptr);
  EXPECT_THAT(why, HasSubstr("cuDeviceGetCount"));
}

TEST_F(FakeDriver, OneDeviceObjectRetainsTheContextOnce) {
  std::string why;
  auto driver = open(&why);
  {
    auto a = driver->device(0);
    EXPECT_EQ(driver->device(0), a);
    EXPECT_NE(driver->device(1), a);
    EXPECT_EQ(number("fake_retained"), 1);
  }
  EXPECT_EQ(number("fake_retained"), 0);
  EXPECT_EQ(error_of([&] { driver->device(2); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { driver->device(-1); }).code(), ErrorCode::invalid_argument);
}

TEST_F(FakeDriver, CallsRunInThePrimaryContextAndLeaveTheThreadsAlone) {
  auto device = this->device();
  call<void(void*)>("fake_set_current")(&device);  // the application's own context
  const Buffer buffer = device->allocate(100);
  EXPECT_TRUE(number("fake_in_primary"));
  EXPECT_EQ(number("fake_depth"), 1);
  device->copy_async(buffer.get(), &device, 8, nullptr);
  EXPECT_TRUE(number("fake_in_primary"));
  EXPECT_EQ(number("fake_depth"), 1);
  fail("cuMemAlloc", 1);
  EXPECT_THROW(device->allocate(100), Error);
  EXPECT_EQ(number("fake_depth"), 1);
  TensorMapSpec spec;
  spec.rank = 3;
  alignas(64) std::array<std::byte, 128> map;
  device->encode_tensor_map(spec, map.data());
  EXPECT_TRUE(number("fake_in_primary"));
  { OwnedEvent event = device->create_event(); }
  EXPECT_EQ(calls("cuEventDestroy"), 1);
  EXPECT_TRUE(number("fake_in_primary"));
  EXPECT_EQ(number("fake_depth"), 1);
}

TEST_F(FakeDriver, ErrorsSayWhatFailed) {
  auto device = this->device();
  fail("cuMemAlloc", 2);
  const Error memory = error_of([&] { device->allocate(12345); });
  EXPECT_EQ(memory.code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(memory.retryable());
  EXPECT_EQ(memory.call(), "cuMemAlloc");
  EXPECT_THAT(memory.message(), HasSubstr("12345 bytes"));
  EXPECT_THAT(memory.message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY (2)"));
  EXPECT_THAT(memory.message(), HasSubstr("a fake failure"));
  fail("cuStreamSynchronize", 1);
  const Error plain = error_of([&] { device->synchronize(nullptr); });
  EXPECT_EQ(plain.code(), ErrorCode::cuda_error);
  EXPECT_EQ(plain.scope(), ErrorScope::call);
  for (const int sticky : {214, 700, 714, 715, 716, 719}) {
    fail("cuStreamSynchronize", sticky);
    const Error lost = error_of([&] { device->synchronize(nullptr); });
    EXPECT_EQ(lost.code(), ErrorCode::device_lost) << sticky;
    EXPECT_EQ(lost.scope(), ErrorScope::device) << sticky;
    EXPECT_THAT(lost.message(), HasSubstr("must exit"));
  }
}

TEST_F(FakeDriver, AnUnfinishedEventIsNoError) {
  auto device = this->device();
  const OwnedEvent event = device->create_event();
  EXPECT_TRUE(device->done(event.get()));
  fail("cuEventQuery", 600);
  EXPECT_FALSE(device->done(event.get()));
  fail("cuEventQuery", 719);
  EXPECT_EQ(error_of([&] { device->done(event.get()); }).code(), ErrorCode::device_lost);
}

TEST_F(FakeDriver, AMissingFunctionIsAnErrorAtFirstUseOnly) {
  hide("cuLibraryLoadData");
  auto device = this->device();
  EXPECT_NO_THROW(device->synchronize(nullptr));
  const Error error = error_of([&] { device->load("x", 1, "kernel", 0); });
  EXPECT_EQ(error.code(), ErrorCode::library_missing);
  EXPECT_THAT(error.message(), HasSubstr("cuLibraryLoadData"));
  EXPECT_THAT(error.message(), HasSubstr("12.8"));
}

TEST_F(FakeDriver, LoadLaunchUnload) {
  auto device = this->device();
  {
    const auto kernel = device->load("x", 1, "kernel", 47 * 1024);
    EXPECT_EQ(kernel->registers(), 40);
    EXPECT_EQ(kernel->static_smem(), 1024);
    EXPECT_EQ(calls("cuFuncSetAttribute"), 0);  // the default is enough, the static kilobyte included
    device->allow_smem(*kernel, 100000);
    EXPECT_EQ(number("fake_smem"), 100000);
    device->launch(*kernel, {1}, {32}, 100000, nullptr, nullptr);
    EXPECT_EQ(calls("cuLaunchKernel"), 1);
    fail("cuLaunchKernel", 701);
    EXPECT_THAT(error_of([&] {
                  device->launch(*kernel, {7, 8}, {32}, 5, nullptr, nullptr);
                }).message(),
                HasSubstr("grid (7, 8, 1), block (32, 1, 1), 5 bytes"));
  }
  EXPECT_EQ(calls("cuLibraryUnload"), 1);
  fail("cuLibraryGetKernel", 500);
  EXPECT_THAT(error_of([&] { device->load("x", 1, "absent", 0); }).message(), HasSubstr("kernel absent"));
  EXPECT_EQ(calls("cuLibraryUnload"), 2);  // not leaked
}

TEST_F(FakeDriver, EarlyLaunchesWhereTheDeviceAndTheDriverHaveThem) {
  const auto launch = [&](int ordinal) {
    auto device = this->device(ordinal);
    const auto kernel = device->load("cubin", 5, "kernel", 0);
    device->launch(*kernel, {}, {}, 0, nullptr, nullptr, /*early=*/true);
  };
  launch(0);
  EXPECT_EQ(calls("cuLaunchKernelEx"), 1);
  EXPECT_TRUE(number("fake_early"));
  EXPECT_EQ(calls("cuLaunchKernel"), 0);
  launch(1);  // sm_86
  EXPECT_EQ(calls("cuLaunchKernel"), 1);
  hide("cuLaunchKernelEx");
  launch(0);
  EXPECT_EQ(calls("cuLaunchKernel"), 2);
  EXPECT_EQ(calls("cuLaunchKernelEx"), 1);
}

TEST_F(FakeDriver, CopiesOfNothingAndOfContiguousRows) {
  auto device = this->device();
  char bytes[64] = {};
  device->copy_async(bytes, bytes, 0, nullptr);
  device->copy_2d_async(bytes, 8, bytes, 8, 4, 0, nullptr);
  EXPECT_EQ(calls("cuMemcpyAsync") + calls("cuMemcpy2DAsync"), 0);
  device->copy_2d_async(bytes, 8, bytes + 32, 8, 8, 4, nullptr);
  device->copy_2d_async(bytes, 2, bytes + 32, 3, 8, 1, nullptr);  // one row: pitches have no meaning
  EXPECT_EQ(calls("cuMemcpyAsync"), 2);
  device->copy_2d_async(bytes, 8, bytes + 32, 16, 8, 2, nullptr);
  EXPECT_EQ(calls("cuMemcpy2DAsync"), 1);
  EXPECT_EQ(error_of([&] { device->copy_2d_async(bytes, 4, bytes, 8, 8, 2, nullptr); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_FALSE(device->allocate(0));
  EXPECT_EQ(calls("cuMemAlloc"), 0);
}

TEST_F(FakeDriver, AForkedChildGetsANamedError) {
  auto device = this->device();
  Buffer buffer = device->allocate(100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Error error = error_of([&] { device->allocate(1); });
    const Error sync = error_of([&] { device->synchronize(nullptr); });
    const int freed = calls("cuMemFree");
    buffer.reset();  // quiet, and without a driver call
    _exit(error.code() == ErrorCode::forked && error.scope() == ErrorScope::process &&
                  sync.code() == ErrorCode::forked && calls("cuMemFree") == freed
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_NO_THROW(device->synchronize(nullptr));
}

}  // namespace
}  // namespace bdcp::device
