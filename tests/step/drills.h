// What the drills of misbehaving ranks have in common.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/job.h"

namespace bdcp::test {

inline constexpr double kMore = 2;  // seconds that a machine may be slow, on top of a drill's own bound

/// bdcp_rank_program with these arguments.
inline std::vector<std::string> command(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{BDCP_RANK_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

/// Each of these ranks ended with this error, in one line.
inline void expect_error(Job& job, const std::vector<int>& ranks, const std::string& code, int origin,
                         const std::vector<std::string>& words) {
  EXPECT_THAT(job.all_text(), testing::Not(testing::HasSubstr("Sanitizer")));
  for (const int rank : ranks) {
    const std::string& text = job[rank].text;
    const std::size_t at = text.find("error ");
    ASSERT_NE(at, std::string::npos) << job.all_text();
    const std::string line = text.substr(at, text.find('\n', at) - at);
    EXPECT_THAT(
        line, testing::HasSubstr("error " + code + " origin " + std::to_string(origin) + " scope communicator"))
        << job.all_text();
    for (const std::string& word : words) EXPECT_THAT(line, testing::HasSubstr(word)) << job.all_text();
  }
}

}  // namespace bdcp::test
