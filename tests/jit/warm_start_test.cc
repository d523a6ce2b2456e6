// What needs a process that has not loaded NVRTC: compiles happen in forked children, this process only looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <functional>

#include "bdcp/error.h"
#include "jit/compiler.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using Origin = CompiledKernel::Origin;
using testing::env_without_nvrtc;
using testing::library_env;
using testing::read_file;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;
using testing::write_file;
namespace fs = std::filesystem;

bool nvrtc_is_loaded() { return read_file("/proc/self/maps").find("libnvrtc") != std::string::npos; }

// Exit status of `body` in a child.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class WarmStart : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    file_ = locate_nvrtc(library_env(), &why);
    if (!file_.found()) GTEST_SKIP() << "no NVRTC: " << why;
    ASSERT_FALSE(nvrtc_is_loaded());
    ASSERT_EQ(in_child([&] {
                KernelCache cache(options(), library_env(), nullptr, sources_);
                return cache.get(scale_spec())->origin == Origin::compiled && nvrtc_is_loaded() ? 0 : 1;
              }),
              0);
  }
  CacheOptions options() {
    CacheOptions options;
    options.cache_dir = dir_.str() + "/cache";
    return options;
  }
  const std::vector<EmbeddedFile> sources_ = scale_sources();
  TempDir dir_;
  NvrtcFile file_;
};

TEST_F(WarmStart, AHitNeverTouchesNvrtc) {
  KernelCache cache(options(), library_env(), nullptr, sources_);
  EXPECT_EQ(cache.get(scale_spec())->origin, Origin::disk);
  EXPECT_EQ(cache.get(scale_spec())->origin, Origin::memory);
  EXPECT_FALSE(nvrtc_is_loaded());
}

TEST_F(WarmStart, EntriesServeAMachineWithoutNvrtc) {
  CacheOptions seeded;
  seeded.cache_dir = "";
  seeded.seed_dirs = {*options().cache_dir};
  KernelCache cache(seeded, env_without_nvrtc(), nullptr, sources_);
  const auto kernel = cache.get(scale_spec());
  EXPECT_EQ(kernel->origin, Origin::seed);
  EXPECT_EQ(kernel->nvrtc_build, file_.build);
  EXPECT_THROW(cache.get(scale_spec(4)), Error);
}

TEST_F(WarmStart, ProcessesThatStartTogetherAllFinish) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      KernelCache cache(options(), library_env(), nullptr, sources_);
      _exit(cache.get(scale_spec(50))->cubin->empty() || cache.stats().corrupt > 0 ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  KernelCache cache(options(), library_env(), nullptr, sources_);
  EXPECT_EQ(cache.get(scale_spec(50))->origin, Origin::disk);
}

// The loader may find builtins anywhere, so this copy of the library asks for ones that exist nowhere.
TEST_F(WarmStart, MissingBuiltinsAreNamed) {
  std::string bytes = read_file(file_.path);
  for (std::size_t at = 0; (at = bytes.find("libnvrtc-builtins.so", at)) != std::string::npos;)
    bytes.replace(at, 20, "libnvrtc-builtins.sx");
  const std::string copy = dir_.str() + "/" + fs::path(file_.path).filename().string();
  write_file(copy, bytes);
  EXPECT_EQ(in_child([&] {
              Compiler compiler(Env::from_pairs({{"BDCP_LIBNVRTC", copy}}));
              try {
                compiler.compile(scale_spec(), make_spec_key(scale_spec(), sources_));
              } catch (const Error& error) {
                const bool named = error.message().find("libnvrtc-builtins.sx") != std::string::npos &&
                                   error.message().find(copy) != std::string::npos;
                if (!named) std::fprintf(stderr, "%s\n", error.what());
                return named && error.code() == ErrorCode::library_missing ? 0 : 1;
              }
              return 2;
            }),
            0);
}

}  // namespace
}  // namespace bdcp::jit
