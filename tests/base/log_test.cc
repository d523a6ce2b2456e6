#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace bdcp {
namespace {

using Level = Log::Level;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(Log, SinkGetsLinesAtOrAboveTheLevelVerbatim) {
  std::vector<std::pair<Level, std::string>> lines;
  Log log(Level::info, [&](Level level, std::string_view line) { lines.emplace_back(level, line); });
  log.debug("hidden");
  log.info("shown {} %s");
  log.warn("careful");
  log.error("broken");
  EXPECT_THAT(lines, ElementsAre(Pair(Level::info, "shown {} %s"), Pair(Level::warn, "careful"),
                                 Pair(Level::error, "broken")));
}

TEST(Log, LevelCanChange) {
  std::vector<std::string> lines;
  Log log(Level::error, [&](Level, std::string_view line) { lines.emplace_back(line); });
  EXPECT_FALSE(log.enabled(Level::warn));
  log.set_level(Level::debug);
  EXPECT_TRUE(log.enabled(Level::debug));
  log.debug("now");
  log.set_level(Level::off);
  EXPECT_FALSE(log.enabled(Level::error));
  log.error("never");
  EXPECT_THAT(lines, ElementsAre("now"));
}

TEST(Log, WithoutASinkLinesGoToStderr) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  {
    Log log(Level::info);
    log.warn("to the console");
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("to the console"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace bdcp
