#include "autotune/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

namespace bdcp::autotune {
namespace {

std::string written(bool bar, const std::function<void(Progress&)>& body) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  {
    Progress progress(stream, bar, 10);
    body(progress);
  }
  std::fclose(stream);
  std::string result(text, bytes);
  std::free(text);
  return result;
}

TEST(Progress, PlainLines) {
  EXPECT_EQ(written(false,
                    [](Progress& progress) {
                      progress.line("compiling a");
                      progress.step(1);
                      progress.line("compiled a");
                    }),
            "compiling a\ncompiled a\n");
}

TEST(Progress, BarIsRedrawnAndCleared) {
  const std::string text = written(true, [](Progress& progress) {
    progress.line(std::string(200, 'x'));
    progress.step(5);
    progress.step(10);
  });
  EXPECT_THAT(text, ::testing::HasSubstr("[" + std::string(15, '#') + std::string(15, '.') + "] 5/10"));
  EXPECT_THAT(text, ::testing::HasSubstr("[" + std::string(30, '#') + "] 10/10"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\033[K"));
}

}  // namespace
}  // namespace bdcp::autotune
