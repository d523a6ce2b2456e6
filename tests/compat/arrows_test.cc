// The arrows between modules, checked with the compiler itself: what a module may see compiles with its include
// folders, what it may not see does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace bdcp {
namespace {

namespace fs = std::filesystem;

// A module's modules, itself included: design.md's arrows, closed.
const std::map<std::string, std::set<std::string>> kMaySee{
    {"base", {"base"}},
    {"plan", {"base", "plan"}},
    {"policy", {"base", "policy"}},
    {"device", {"base", "device"}},
    {"jit", {"base", "device", "jit", "policy"}},
    {"comm", {"base", "comm", "device", "jit", "plan", "policy"}},
    {"attention", {"attention", "base", "device", "jit", "plan", "policy"}}};

// One header each, light to parse.
const std::map<std::string, std::string> kHeader{{"base", "base/check.h"},
                                                 {"plan", "plan/plan.h"},
                                                 {"policy", "policy/model_file.h"},
                                                 {"device", "device/device.h"},
                                                 {"jit", "jit/kernel_spec.h"},
                                                 {"comm", "comm/group.h"},
                                                 {"attention", "attention/backend.h"}};

std::vector<std::string> include_folders(const std::string& module) {
  std::ifstream in(std::string(BDCP_MODULE_INCLUDES) + "/" + module + ".txt");
  std::vector<std::string> folders;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) folders.push_back(line);
  return folders;
}

// Empty if a unit with `include` compiles in the module's place, else what the compiler said.
std::string compile(const std::string& module, const std::string& include) {
  const std::string stem = testing::TempDir() + "bdcp_arrow_" + std::to_string(getpid());
  std::ofstream(stem + ".cc") << "#include \"" << include << "\"\n";
  std::string command = std::string(BDCP_CXX_COMPILER) + " -std=c++20 -fsyntax-only";
  for (const std::string& folder : include_folders(module)) command += " '-I" + folder + "'";
  command += " " + stem + ".cc 2> " + stem + ".log";
  const int status = std::system(command.c_str());
  std::ifstream in(stem + ".log");
  const std::string said{std::istreambuf_iterator<char>(in), {}};
  std::remove((stem + ".cc").c_str());
  std::remove((stem + ".log").c_str());
  return status == 0 ? "" : "error: " + said;
}

class Arrows : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_FALSE(include_folders(GetParam()).empty()); }
};

TEST_P(Arrows, OwnHeaderCompiles) { EXPECT_EQ(compile(GetParam(), kHeader.at(GetParam())), ""); }

TEST_P(Arrows, WrongArrowsDoNotCompile) {
  for (const auto& [other, header] : kHeader) {
    if (kMaySee.at(GetParam()).contains(other)) continue;
    EXPECT_THAT(compile(GetParam(), header), testing::HasSubstr("No such file or directory"))
        << GetParam() << " must not see " << header;
  }
}

TEST_P(Arrows, PureHostModulesHaveNoCudaFolder) {
  for (const std::string& folder : include_folders(GetParam())) {
    // The compiler's own folders (/usr/include) are beyond our reach and are not listed.
    if (GetParam() != "base" && GetParam() != "plan" && GetParam() != "policy") break;
    EXPECT_FALSE(fs::exists(fs::path(folder) / "cuda.h") || fs::exists(fs::path(folder) / "nvrtc.h")) << folder;
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Arrows, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, sees] : kMaySee) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& module) { return module.param; });

}  // namespace
}  // namespace bdcp
