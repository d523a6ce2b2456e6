#include "base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace bdcp {
namespace {

TEST(Env, ReadsEveryVariableIntoItsField) {
  const Env env = Env::from_pairs({{"BDCP_POLICY", "p.json"},
                                   {"BDCP_CACHE_DIR", "cache"},
                                   {"BDCP_ALLOW_XNODE", "1"},
                                   {"BDCP_LOG", "debug"},
                                   {"BDCP_SET", "exchange.path=halo"},
                                   {"BDCP_LIBCUDA", "c.so"},
                                   {"BDCP_LIBNVRTC", "r.so"},
                                   {"BDCP_LIBNCCL", "n.so"},
                                   {"BDCP_RENDEZVOUS", "h:1"},
                                   {"BDCP_SECRET", "s"},
                                   {"BDCP_HOST_INTERFACE", "eth0"},
                                   {"RANK", "3"},
                                   {"HOME", "home"},
                                   {"XDG_CACHE_HOME", "xdg"},
                                   {"CUDA_HOME", "cuda"}});
  EXPECT_EQ(env.policy, "p.json");
  EXPECT_EQ(env.cache_dir, "cache");
  EXPECT_EQ(env.allow_xnode, "1");
  EXPECT_EQ(env.log, "debug");
  EXPECT_EQ(env.set, "exchange.path=halo");
  EXPECT_EQ(env.libcuda, "c.so");
  EXPECT_EQ(env.libnvrtc, "r.so");
  EXPECT_EQ(env.libnccl, "n.so");
  EXPECT_EQ(env.rendezvous, "h:1");
  EXPECT_EQ(env.secret, "s");
  EXPECT_EQ(env.host_interface, "eth0");
  EXPECT_EQ(env.launcher, (std::map<std::string, std::string>{{"RANK", "3"}}));
  EXPECT_EQ(env.home, "home");
  EXPECT_EQ(env.xdg_cache_home, "xdg");
  EXPECT_EQ(env.cuda_home, "cuda");
}

TEST(Env, UnsetAndEmptyAreTheSame) {
  EXPECT_EQ(Env::from_pairs({}).policy, std::nullopt);
  EXPECT_EQ(Env::from_pairs({{"BDCP_POLICY", ""}}).policy, std::nullopt);
}

TEST(Env, CudaHomeComesBeforeCudaPath) {
  EXPECT_EQ(Env::from_pairs({{"CUDA_PATH", "b"}}).cuda_home, "b");
  EXPECT_EQ(Env::from_pairs({{"CUDA_PATH", "b"}, {"CUDA_HOME", "a"}}).cuda_home, "a");
}

TEST(Env, FromProcessSeesTheProcess) {
  ASSERT_EQ(setenv("BDCP_LIBNCCL", "somewhere", 1), 0);
  EXPECT_EQ(Env::from_process().libnccl, "somewhere");
  ASSERT_EQ(unsetenv("BDCP_LIBNCCL"), 0);
  EXPECT_EQ(Env::from_process().libnccl, std::nullopt);
}

// One source per fact: a variable that is read without being documented beside its field is a mistake.
TEST(Env, EveryVariableReadIsDocumentedInTheHeader) {
  const auto names = [](const std::string& file) {
    std::ifstream in(std::string(BDCP_SOURCE_DIR) + "/runtime/base/" + file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    static const std::regex variable("\\b(BDCP_[A-Z_]+|CUDA_[A-Z]+|XDG_[A-Z_]+|HOME)\\b");
    std::set<std::string> found;
    for (std::sregex_iterator it(text.begin(), text.end(), variable), end; it != end; ++it)
      if (const std::string name = it->str(); name.find("BDCP_") == 0 && name.back() != '_') found.insert(name);
    return found;
  };
  EXPECT_FALSE(names("env.cc").empty());
  // "Every BDCP_* variable" in prose is no name: it ends in '_' and is left out above.
  EXPECT_EQ(names("env.cc"), names("env.h"));
}

}  // namespace
}  // namespace bdcp
