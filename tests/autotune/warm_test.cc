// `bdcp-autotune warm`, as a function and as a program.
#include "autotune/warm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bdcp/error.h"
#include "jit/kernel_cache.h"

namespace bdcp::autotune {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class WarmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "bdcp_warm_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    std::ofstream(dir_ + "/tiny.json") << R"({"schema_version": 1, "name": "tiny", "shapes": [
      {"heads_q": 2, "heads_kv": 1, "head_dim": 16, "dtypes": ["bf16"]}]})";
  }
  void TearDown() override { fs::remove_all(dir_); }
  bool can_compile() {
    jit::CacheOptions options;
    options.cache_dir = "";
    why_ = jit::KernelCache(options, Env::from_process(), nullptr).why_no_compiler();
    return why_.empty();
  }
  WarmOptions options() {
    WarmOptions options;
    options.archs = {"sm_80"};
    options.models = {dir_ + "/tiny.json"};
    options.cache = dir_ + "/cache";
    return options;
  }
  struct Run {
    int code = -1;
    std::string out, err;
  };
  Run run(const std::string& arguments) {
    Run result;
    const std::string err_file = dir_ + "/stderr";
    const std::string command = std::string(BDCP_AUTOTUNE) + " " + arguments + " 2>" + err_file;
    std::FILE* pipe = popen(command.c_str(), "r");
    if (!pipe) return result;
    char buffer[4096];
    for (std::size_t got; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
      result.out.append(buffer, got);
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream file(err_file);
    result.err.assign(std::istreambuf_iterator<char>(file), {});
    return result;
  }
  std::string dir_, why_;
};

TEST_F(WarmTest, CompilesThenHits) {
  if (!can_compile()) GTEST_SKIP() << "no NVRTC: " << why_;
  const WarmReport first = warm(options(), Env::from_process());
  EXPECT_GE(first.entries.size(), 4u);  // forward, two of backward, reduction
  EXPECT_EQ(first.compiled, first.entries.size());
  EXPECT_EQ(first.hits + first.failed, 0u);
  EXPECT_EQ(first.cache, dir_ + "/cache");
  for (const WarmEntry& entry : first.entries) {
    EXPECT_EQ(entry.info.key.size(), 32u);
    EXPECT_GT(entry.info.registers, 0) << entry.info.kernel;
    EXPECT_GT(entry.info.compile_ms, 0) << entry.info.kernel;
    EXPECT_FALSE(entry.info.hit);
  }
  const WarmReport second = warm(options(), Env::from_process());
  EXPECT_EQ(second.hits, first.entries.size());
  EXPECT_EQ(second.compiled + second.failed, 0u);
  for (std::size_t i = 0; i < second.entries.size(); ++i) {
    EXPECT_EQ(second.entries[i].info.key, first.entries[i].info.key);
    EXPECT_TRUE(second.entries[i].info.hit);
  }
}

TEST_F(WarmTest, BadInputIsNamed) {
  for (const char* arch : {"90a", "sm_", "sm_9", "sm_90x", "compute_80", ""}) {
    WarmOptions bad = options();
    bad.archs = {arch};
    try {
      warm(bad, Env::from_process());
      ADD_FAILURE() << arch;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << arch;
    }
  }
  WarmOptions bad = options();
  bad.models = {"no-such-model"};
  EXPECT_THROW(warm(bad, Env::from_process()), Error);
}

TEST_F(WarmTest, ProgramJson) {
  if (!can_compile()) GTEST_SKIP() << "no NVRTC: " << why_;
  const Run result =
      run("warm --arch sm_80 --model " + dir_ + "/tiny.json --cache " + dir_ + "/c --jobs 2 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["kernels"], json["compiled"]);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["entries"].size(), json["kernels"]);
  EXPECT_THAT(result.err, HasSubstr("compiling "));  // no terminal: plain lines
  EXPECT_EQ(result.err.find('\r'), std::string::npos);
}

TEST_F(WarmTest, ProgramExitCodes) {
  const std::string model = " --model " + dir_ + "/tiny.json";
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("warm --arch sm_80").code, 2);
  EXPECT_EQ(run("warm --arch sm_80 --jobs x" + model).code, 2);
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("warm --arch 80 --cache " + dir_ + "/c" + model).code, 3);
  EXPECT_EQ(run("warm --arch sm_80 --model absent --cache " + dir_ + "/c").code, 3);
  std::ofstream(dir_ + "/file") << "x";
  const Run no_folder = run("warm --arch sm_80 --cache " + dir_ + "/file" + model);
  EXPECT_EQ(no_folder.code, 4);
  EXPECT_THAT(no_folder.err, HasSubstr(dir_ + "/file"));
  const Run unknown = run("warm --arch sm_199 --cache " + dir_ + "/c" + model);
  EXPECT_EQ(unknown.code, 4) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("sm_199"));
}

}  // namespace
}  // namespace bdcp::autotune
