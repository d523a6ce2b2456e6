// Every kernel this module may ask for compiles, without spills, for the architectures that are shipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "comm/kv_exchange.h"
#include "jit/kernel_cache.h"

namespace bdcp {
namespace {

jit::CacheOptions in_memory() {
  jit::CacheOptions options;
  options.cache_dir = "";
  return options;
}

TEST(ReduceKernel, CompilesWithoutSpillsOrAdvisories) {
  jit::KernelCache cache(in_memory(), Env::from_process(), std::make_shared<Log>(Log::Level::error));
  if (const std::string why = cache.why_no_compiler(); !why.empty()) GTEST_SKIP() << why;
  std::vector<jit::KernelSpec> specs;
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const bool payload_f32 : {true, false})
        for (const auto& spec : comm::required_kernels(dtype, payload_f32, arch)) specs.push_back(spec);
  std::vector<std::string> errors;
  const auto kernels = cache.get_all(specs, &errors);
  ASSERT_EQ(kernels.size(), 12u);
  EXPECT_THAT(errors, testing::Each(""));
  for (const auto& kernel : kernels) {
    ASSERT_NE(kernel, nullptr);
    EXPECT_TRUE(kernel->cubin && !kernel->cubin->empty());
    EXPECT_EQ(kernel->spill_bytes, 0) << kernel->log;
    EXPECT_GT(kernel->registers, 0);
    EXPECT_LE(kernel->registers, 64) << kernel->log;  // four blocks of 256 threads fit an SM
    EXPECT_THAT(kernel->log, testing::Not(testing::HasSubstr("warning")));
  }
}

}  // namespace
}  // namespace bdcp
