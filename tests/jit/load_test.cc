// Kernels of the cache on a real device.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "bdcp/error.h"
#include "jit/cubin_store.h"
#include "jit/nvrtc_library.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using Origin = CompiledKernel::Origin;
using testing::library_env;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;

struct ScaleArgs {
  float* data;
  int count;
};

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = device::Driver::open(Env::from_process(), &why);
    if (!driver_) GTEST_SKIP() << "no CUDA device: " << why;
    device_ = driver_->device(0);
    options_.cache_dir = dir_.str() + "/cache";
    why = KernelCache(options_, library_env(), nullptr, sources_).why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  KernelSpec spec(int factor = 3) { return scale_spec(factor, device_->facts().arch); }

  const std::vector<EmbeddedFile> sources_ = scale_sources();
  TempDir dir_;
  CacheOptions options_;
  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<device::Device> device_;
};

TEST_F(LoadTest, LoadsOnceAndComputes) {
  KernelCache cache(options_, library_env(), nullptr, sources_);
  const auto kernel = cache.load(spec(), device_);
  EXPECT_EQ(cache.load(spec(), device_), kernel);
  EXPECT_EQ(kernel->static_smem(), 512);
  EXPECT_EQ(cache.stats().compiled, 1u);

  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::size_t bytes = values.size() * sizeof(float);
  const device::Buffer buffer = device_->allocate(bytes);
  device_->upload(buffer.get(), values.data(), bytes);
  ScaleArgs args{static_cast<float*>(buffer.get()), 1000};
  void* pointers[] = {&args};
  device_->launch(*kernel, {8}, {128}, 0, nullptr, pointers);
  std::vector<float> back(values.size());
  device_->download(back.data(), buffer.get(), bytes);
  for (std::size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], 3 * values[i]) << i;
}

TEST_F(LoadTest, ThreadsLoadOnce) {
  KernelCache cache(options_, library_env(), nullptr, sources_);
  std::vector<std::shared_ptr<const device::LoadedKernel>> kernels(8);
  {
    std::vector<std::jthread> threads;
    for (auto& kernel : kernels) threads.emplace_back([&] { kernel = cache.load(spec(), device_); });
  }
  for (const auto& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
}

// A well-formed entry whose payload the driver refuses: rebuilt, not fatal.
TEST_F(LoadTest, AnUnloadableEntryIsCompiledAgain) {
  const SpecKey key = make_spec_key(spec(), sources_);
  std::string why;
  CubinRecord record;
  record.nvrtc_build = locate_nvrtc(library_env(), &why).build;
  record.key_text = key.text(record.nvrtc_build);
  record.kernel = "scale";
  record.arch = spec().arch;
  record.cubin.assign(2000, 'j');
  ASSERT_TRUE(CubinStore({*options_.cache_dir, ""}, {}, {}).publish(key, record));
  KernelCache cache(options_, library_env(), nullptr, sources_);
  EXPECT_EQ(cache.get(spec())->origin, Origin::disk);
  EXPECT_NE(cache.load(spec(), device_), nullptr);
  EXPECT_EQ(cache.stats().corrupt, 1u);
  EXPECT_EQ(cache.stats().compiled, 1u);
  KernelCache next(options_, library_env(), nullptr, sources_);
  EXPECT_NE(next.load(spec(), device_), nullptr);
  EXPECT_EQ(next.stats().disk_hits, 1u);
}

TEST_F(LoadTest, AWrongArchIsAnErrorNotALoop) {
  KernelCache cache(options_, library_env(), nullptr, sources_);
  const std::string other = device_->facts().cc_major == 8 ? "sm_90a" : "sm_80";
  if (device_->facts().cc_major == 8) GTEST_SKIP() << "cubins of 8.x run on later 8.x devices";
  EXPECT_THROW(cache.load(scale_spec(3, other), device_), Error);
}

TEST_F(LoadTest, LargeDynamicMemoryIsOptedInto) {
  KernelCache cache(options_, library_env(), nullptr, sources_);
  KernelSpec large = spec();
  large.dynamic_smem = static_cast<int>(device_->facts().smem_per_block) - 1024;
  const auto kernel = cache.load(large, device_);
  const device::Buffer buffer = device_->allocate(512);
  ScaleArgs args{static_cast<float*>(buffer.get()), 128};
  void* pointers[] = {&args};
  device_->launch(*kernel, {1}, {128}, static_cast<unsigned>(large.dynamic_smem), nullptr, pointers);
  device_->synchronize(nullptr);
  large.dynamic_smem = 1 << 20;
  EXPECT_THROW(cache.load(large, device_), Error);
}

}  // namespace
}  // namespace bdcp::jit
