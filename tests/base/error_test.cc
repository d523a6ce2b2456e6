#include "bdcp/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "base/check.h"

namespace bdcp {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Error, WhatNamesCodeMessageAndPlace) {
  const Error error(ErrorCode::invalid_layout, "lengths[3] is -1, allowed: >= 0");
  EXPECT_THAT(error.what(), AllOf(StartsWith("invalid_layout: lengths[3] is -1, allowed: >= 0"),
                                  HasSubstr("(error_test.cc:"), EndsWith(")")));
  EXPECT_EQ(error.message(), "lengths[3] is -1, allowed: >= 0");
  EXPECT_EQ(error.code(), ErrorCode::invalid_layout);
  EXPECT_EQ(error.scope(), ErrorScope::call);
  EXPECT_EQ(error.origin_rank(), -1);
  EXPECT_THAT(error.file(), EndsWith("error_test.cc"));
  EXPECT_GT(error.line(), 0);
}

TEST(Error, CarriesCallLogAndOrigin) {
  Error error(ErrorCode::compile_failed, "reference_forward for sm_90a", ErrorScope::step);
  error.with_call("nvrtcCompileProgram").with_log("line 3: error").with_origin(2);
  EXPECT_EQ(error.call(), "nvrtcCompileProgram");
  EXPECT_EQ(error.log(), "line 3: error");
  EXPECT_EQ(error.origin_rank(), 2);
  EXPECT_EQ(error.scope(), ErrorScope::step);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("[call: nvrtcCompileProgram]"), HasSubstr("[rank 2]"),
                                  EndsWith("\nline 3: error")));
}

TEST(Error, OnlyPassingCausesAreRetryable) {
  EXPECT_TRUE(Error(ErrorCode::timeout, "").retryable());
  EXPECT_TRUE(Error(ErrorCode::out_of_memory, "").retryable());
  EXPECT_FALSE(Error(ErrorCode::device_lost, "").retryable());
  EXPECT_FALSE(Error(ErrorCode::invalid_argument, "").retryable());
  EXPECT_TRUE(Error(ErrorCode::io_error, "").with_retry(true).retryable());
}

TEST(Error, EveryCodeAndScopeHasItsOwnName) {
  std::set<std::string_view> names;
  const int codes = static_cast<int>(ErrorCode::internal) + 1;
  for (int code = 0; code < codes; ++code) names.insert(to_string(static_cast<ErrorCode>(code)));
  EXPECT_EQ(static_cast<int>(names.size()), codes);
  EXPECT_FALSE(names.contains("unknown"));
  names.clear();
  const int scopes = static_cast<int>(ErrorScope::process) + 1;
  for (int scope = 0; scope < scopes; ++scope) names.insert(to_string(static_cast<ErrorScope>(scope)));
  EXPECT_EQ(static_cast<int>(names.size()), scopes);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Require, ThrowsOnlyOnFailureAndFormatsOnlyThen) {
  int formatted = 0;
  const auto make = [&] {
    ++formatted;
    return std::string("world_size is 0, allowed: >= 1");
  };
  EXPECT_NO_THROW(require(true, ErrorCode::invalid_argument, make));
  EXPECT_EQ(formatted, 0);
  try {
    require(false, ErrorCode::invalid_argument, make);
    FAIL() << "require did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "world_size is 0, allowed: >= 1");
    EXPECT_THAT(error.file(), EndsWith("error_test.cc")) << "the place is the caller's";
  }
  EXPECT_EQ(formatted, 1);
  EXPECT_THROW(require(false, ErrorCode::internal, "plain text"), Error);
}

}  // namespace
}  // namespace bdcp
