// Prose that a compiler never sees: the README's example is the one that is compiled and run, its links lead
// somewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace bdcp {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& file) {
  std::ifstream in(fs::path(BDCP_SOURCE_DIR) / file);
  EXPECT_TRUE(in) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Readme, ShowsTheEmbedExampleAsItIsCompiled) {
  const std::string example = read("tools/examples/embed.cc");
  EXPECT_THAT(read("README.md"), testing::HasSubstr("```cpp\n" + example + "```\n"));
  EXPECT_LE(std::count(example.begin(), example.end(), '\n'), 28) << "short enough to read at a glance";
}

TEST(Readme, RelativeLinksExist) {
  static const std::regex link(R"re(\]\(([^)#: ]+)(#[^)]*)?\))re");
  for (const std::string page : {"README.md", "runtime/README.md", "tests/README.md"}) {
    const std::string text = read(page);
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const fs::path target = fs::path(BDCP_SOURCE_DIR) / fs::path(page).parent_path() / (*it)[1].str();
      EXPECT_TRUE(fs::exists(target)) << page << " links to " << (*it)[1];
    }
  }
}

}  // namespace
}  // namespace bdcp
