// Every kernel that a shipped model needs compiles cleanly: no spills, no advisory of ptxas.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "autotune/warm.h"
#include "jit/kernel_cache.h"

namespace bdcp::autotune {
namespace {

TEST(ShippedKernels, CompileWithoutSpillsAndAdvisories) {
  jit::CacheOptions none;
  none.cache_dir = "";
  const std::string why = jit::KernelCache(none, Env::from_process(), nullptr).why_no_compiler();
  if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  std::string folder = (std::filesystem::temp_directory_path() / "bdcp_shipped_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  WarmOptions options;
  options.archs = {"sm_80", "sm_90a"};
  options.models = {"all"};
  options.cache = folder;
  const WarmReport report = warm(options, Env::from_process());
  std::filesystem::remove_all(folder);
  EXPECT_GT(report.entries.size(), 0u);
  EXPECT_EQ(report.compiled, report.entries.size());
  for (const WarmEntry& entry : report.entries) {
    const std::string name = entry.info.kernel + " for " + entry.info.arch;
    EXPECT_EQ(entry.error, "") << name;
    EXPECT_EQ(entry.info.spill_bytes, 0) << name << "\n" << entry.log;
    for (const char* advisory : {"C7508", "C7511", "C7517", "wgmma serialised", "Potential Performance Loss",
                                 "serialization", "setmaxnreg ignored", "'setmaxnreg'"})
      EXPECT_EQ(entry.log.find(advisory), std::string::npos) << name << ": " << advisory << "\n" << entry.log;
  }
}

}  // namespace
}  // namespace bdcp::autotune
