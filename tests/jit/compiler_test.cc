#include "jit/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>

#include "bdcp/error.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using ::testing::HasSubstr;
using testing::library_env;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;
namespace fs = std::filesystem;

class CompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = compiler_.why_unavailable();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  Compiler::Result compile(const KernelSpec& spec) {
    return compiler_.compile(spec, make_spec_key(spec, sources_));
  }
  Error failure(const KernelSpec& spec) {
    try {
      compile(spec);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::internal, "it compiled");
  }
  std::vector<EmbeddedFile> sources_ = scale_sources();
  Compiler compiler_{library_env()};
};

TEST_F(CompilerTest, CubinWithItsResources) {
  const Compiler::Result result = compile(scale_spec());
  ASSERT_GT(result.cubin.size(), 64u);
  EXPECT_EQ(std::memcmp(result.cubin.data(),
                        "\x7f"
                        "ELF",
                        4),
            0);
  EXPECT_GT(result.resources.registers, 0);
  EXPECT_EQ(result.resources.spill_bytes, 0);
  EXPECT_EQ(result.resources.static_smem, 512);
  EXPECT_THAT(result.log, HasSubstr("ptxas info"));
  EXPECT_GT(result.ms, 0);
}

TEST_F(CompilerTest, AKernelBesidesTheTemplatesName) {
  KernelSpec spec = scale_spec();
  spec.kernel = "negate";
  spec.source = "scale";
  EXPECT_EQ(compile(spec).resources.static_smem, 0);
  spec.kernel = "absent";
  EXPECT_THAT(failure(spec).message(), HasSubstr("scale.cuh has no extern \"C\" __global__ function absent"));
}

TEST_F(CompilerTest, BytesAreReproducibleAlsoInAnotherProcessAndFolder) {
  const std::vector<char> here = compile(scale_spec()).cubin;
  EXPECT_EQ(compile(scale_spec()).cubin, here);
  EXPECT_NE(compile(scale_spec(4)).cubin, here);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (chdir("/") != 0) _exit(2);
    Compiler fresh(library_env());
    _exit(fresh.compile(scale_spec(), make_spec_key(scale_spec(), sources_)).cubin == here ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CompilerTest, ErrorsCarryTheLogAndNameTheTemplate) {
  sources_[0].text = "extern \"C\" __global__ void scale() { undeclared_thing = 1; }\n";
  const Error error = failure(scale_spec());
  EXPECT_EQ(error.code(), ErrorCode::compile_failed);
  EXPECT_EQ(error.call(), "nvrtcCompileProgram");
  EXPECT_THAT(error.log(), HasSubstr("undeclared_thing"));
  EXPECT_THAT(error.log(), HasSubstr("scale.cuh(1)"));
  EXPECT_THAT(error.message(), HasSubstr("sm_80"));
  EXPECT_THAT(error.what(), HasSubstr("undeclared_thing"));
}

TEST_F(CompilerTest, NothingOutsideTheTemplatesCanBeIncluded) {
  sources_[0].text = "#include <cuda_fp16.h>\nextern \"C\" __global__ void scale() {}\n";
  EXPECT_THAT(failure(scale_spec()).log(), HasSubstr("cuda_fp16.h"));
}

TEST_F(CompilerTest, EveryReportedArchCompiles) {
  const std::vector<std::string> archs = compiler_.supported_archs();
  EXPECT_THAT(archs, ::testing::Contains("sm_80"));
  for (const std::string& arch : archs) EXPECT_GT(compile(scale_spec(3, arch)).cubin.size(), 0u) << arch;
  EXPECT_GT(compile(scale_spec(3, "sm_90a")).cubin.size(), 0u);
}

TEST_F(CompilerTest, UnknownArchsAreNamed) {
  for (const char* arch :
       {"sm_101a", "sm_12", "sm_80a", "sm_90f", "sm_90ax", "compute_80", "90", "sm_", "", "SM_80"}) {
    const Error error = failure(scale_spec(3, arch));
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << arch;
    EXPECT_THAT(error.message(), HasSubstr("sm_80, ")) << arch;
  }
}

TEST(CheckArch, SuffixesNeedAnArchThatHasThem) {
  const std::vector<int> archs{80, 90, 100};
  for (const char* good : {"sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f"})
    EXPECT_NO_THROW(check_arch(good, archs, "NVRTC")) << good;
  for (const char* bad : {"sm_80a", "sm_80f", "sm_90f", "sm_101", "sm_100x", "sm_100af"})
    EXPECT_THROW(check_arch(bad, archs, "NVRTC"), Error) << bad;
}

TEST_F(CompilerTest, TheBuildIsKnownWithoutLoading) {
  Compiler fresh(library_env());
  const std::string build = fresh.nvrtc_build();
  EXPECT_GE(build.size(), 40u) << build;
  EXPECT_EQ(build.find_first_not_of("0123456789abcdef+xh-"), std::string::npos) << build;
  EXPECT_EQ(build, compiler_.nvrtc_build());
}

TEST_F(CompilerTest, TheProcessKeepsItsStackLimit) {
  rlimit before, after;
  getrlimit(RLIMIT_STACK, &before);
  compile(scale_spec(5));
  getrlimit(RLIMIT_STACK, &after);
  EXPECT_EQ(before.rlim_cur, after.rlim_cur);
}

}  // namespace
}  // namespace bdcp::jit
