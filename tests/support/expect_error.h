// EXPECT_ERROR: a call throws bdcp::Error with a code and words in its message.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bdcp/error.h"

namespace bdcp::test {

template <class Call>
void expect_error(ErrorCode code, const std::vector<std::string>& words, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected " << to_string(code);
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    for (const std::string& word : words) EXPECT_THAT(error.message(), testing::HasSubstr(word));
  }
}

}  // namespace bdcp::test
