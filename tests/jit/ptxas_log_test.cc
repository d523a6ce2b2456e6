#include "jit/ptxas_log.h"

#include <gtest/gtest.h>

namespace bdcp::jit {
namespace {

constexpr const char* kLog = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'negate' for 'sm_80'
ptxas info    : Function properties for negate
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'scale' for 'sm_80'
ptxas info    : Function properties for scale
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size, 49152 bytes smem, 364 bytes cmem[0]
ptxas info    : Compile time = 2.1 ms
)";

TEST(PtxasLog, ReadsTheSectionOfTheKernel) {
  KernelResources resources;
  ASSERT_TRUE(parse_ptxas_log(kLog, "scale", &resources));
  EXPECT_EQ(resources.registers, 168);
  EXPECT_EQ(resources.spill_bytes, 64);
  EXPECT_EQ(resources.static_smem, 49152);
  ASSERT_TRUE(parse_ptxas_log(kLog, "negate", &resources));
  EXPECT_EQ(resources.registers, 8);
  EXPECT_EQ(resources.spill_bytes, 0);
  EXPECT_EQ(resources.static_smem, 0);
}

TEST(PtxasLog, SaysWhenTheKernelIsNotThere) {
  KernelResources resources;
  EXPECT_FALSE(parse_ptxas_log(kLog, "scal", &resources));
  EXPECT_FALSE(parse_ptxas_log("", "scale", &resources));
}

}  // namespace
}  // namespace bdcp::jit
