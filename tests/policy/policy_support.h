// Shorthand for the policy tests.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "bdcp/error.h"
#include "bdcp/policy.h"

namespace bdcp::test {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// A policy from text, with no environment.
inline Policy from_json(const std::string& text, const Pairs& code = {}) {
  return Policy::load({.file = {}, .json = text, .code = code, .ignore_env = true, .environment = {}});
}
inline Policy from_code(const Pairs& code) { return from_json("{}", code); }
inline Policy from_env(const Pairs& environment, const std::string& text = "{}", const Pairs& code = {}) {
  return Policy::load(
      {.file = {}, .json = text, .code = code, .ignore_env = false, .environment = environment});
}

inline PolicyField field_of(const Policy& policy, const std::string& pointer, const GroupFacts& facts = {}) {
  for (const PolicyField& field : policy.fields(facts))
    if (field.pointer == pointer) return field;
  ADD_FAILURE() << "no field " << pointer;
  return {};
}

/// Message of the bdcp::Error that `call` throws; fails the test when it throws none or another code.
template <class Call>
std::string error_of(Call&& call, ErrorCode code = ErrorCode::invalid_policy) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// A folder of the running test, removed with it.
class ScratchFolder {
 public:
  ScratchFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string("bdcp_") + test->test_suite_name() + "_" + test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace bdcp::test
