// Device on real hardware; launching is tested with the jit module, which makes kernels.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "bdcp/error.h"
#include "device/device.h"

namespace bdcp::device {
namespace {

class DeviceGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = Driver::open(Env::from_process(), &why);
    if (!driver_) GTEST_SKIP() << "no CUDA device: " << why;
    device_ = driver_->device(0);
  }
  // The context current on this thread, asked of the driver itself.
  void* current() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto get = reinterpret_cast<int (*)(void**)>(dlsym(library, "cuCtxGetCurrent"));
    void* context = nullptr;
    EXPECT_EQ(get(&context), 0);
    return context;
  }
  std::shared_ptr<const Driver> driver_;
  std::shared_ptr<Device> device_;
};

TEST_F(DeviceGpuTest, Facts) {
  const DeviceFacts& facts = device_->facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_GE(facts.cc_major, 7);
  EXPECT_TRUE(facts.arch.starts_with("sm_"));
  EXPECT_GT(facts.sm_count, 0);
  EXPECT_GE(facts.smem_per_block, 48u << 10);
  EXPECT_GT(facts.l2_bytes, 0u);
  EXPECT_GT(facts.total_memory, 1u << 30);
  EXPECT_GE(facts.driver_version, 12000);
  EXPECT_EQ(driver_->device(0), device_);
}

TEST_F(DeviceGpuTest, CopiesFillsAndPitches) {
  std::vector<int> values(1000);
  std::iota(values.begin(), values.end(), 0);
  const std::size_t bytes = values.size() * sizeof(int);
  const Buffer a = device_->allocate(bytes), b = device_->allocate(bytes);
  const OwnedStream stream = device_->create_stream(true);
  device_->upload(a.get(), values.data(), bytes);
  device_->fill_async(b.get(), 0xff, bytes, stream.get());
  // Columns 2..4 of a 10 x 100 matrix into columns 0..2 of the same shape.
  device_->copy_2d_async(b.get(), 400, static_cast<char*>(a.get()) + 8, 400, 12, 10, stream.get());
  device_->synchronize(stream.get());
  std::vector<int> back(values.size());
  device_->download(back.data(), b.get(), bytes);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(back[i], i % 100 < 3 ? i + 2 : -1) << i;
}

TEST_F(DeviceGpuTest, EventsOrderStreams) {
  const std::size_t bytes = 64u << 20;
  const Buffer a = device_->allocate(bytes), b = device_->allocate(bytes);
  const OwnedStream first = device_->create_stream(), second = device_->create_stream();
  const OwnedEvent start = device_->create_event(true), end = device_->create_event(true);
  device_->record(start.get(), first.get());
  device_->fill_async(a.get(), 7, bytes, first.get());
  device_->record(end.get(), first.get());
  device_->wait(second.get(), end.get());
  device_->copy_async(b.get(), a.get(), bytes, second.get());
  device_->synchronize(second.get());
  EXPECT_TRUE(device_->done(end.get()));
  device_->synchronize_event(end.get());
  EXPECT_GT(device_->elapsed_ms(start.get(), end.get()), 0.0);
  unsigned char last = 0;
  device_->download(&last, static_cast<char*>(b.get()) + bytes - 1, 1);
  EXPECT_EQ(last, 7);
}

TEST_F(DeviceGpuTest, TheThreadsContextIsUnchanged) {
  EXPECT_EQ(current(), nullptr);
  {
    const Buffer buffer = device_->allocate(1000);
    const OwnedStream stream = device_->create_stream();
    device_->fill_async(buffer.get(), 1, 1000, stream.get());
    device_->synchronize(stream.get());
    EXPECT_EQ(current(), nullptr);
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(DeviceGpuTest, Errors) {
  try {
    device_->allocate(std::size_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(error.message().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
  }
  try {
    device_->load("not a cubin", 11, "kernel", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cuda_error);
    // Drivers that load lazily look at the bytes only when a kernel is asked for.
    EXPECT_TRUE(error.call() == "cuLibraryLoadData" || error.call() == "cuLibraryGetKernel") << error.what();
  }
  EXPECT_EQ(current(), nullptr);
  EXPECT_NO_THROW(device_->synchronize(nullptr));
}

}  // namespace
}  // namespace bdcp::device
