// configs/README.md holds the reference that the schema gives.
#include "policy_markdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "policy_support.h"

namespace bdcp {
namespace {

TEST(PolicyMarkdown, ReadmeIsUpToDate) {
  std::ifstream file(std::string(BDCP_SOURCE_DIR) + "/configs/README.md");
  const std::string readme((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(readme.empty());
  EXPECT_EQ(readme, docs::with_policy_reference(readme)) << "run bin/bdcp-policy-reference configs/README.md";
}

TEST(PolicyMarkdown, HoldsARowForEveryField) {
  const std::string text = docs::policy_markdown();
  for (const PolicyField& field : Policy().fields()) {
    const std::string key = field.pointer.substr(field.pointer.rfind('/') + 1);
    EXPECT_THAT(text, testing::HasSubstr("\n| `" + key + "` | `" + field.value + "` | "));
  }
}

TEST(PolicyMarkdown, NeedsItsMarkers) {
  EXPECT_THAT(test::error_of([] { docs::with_policy_reference("nothing here"); }, ErrorCode::invalid_argument),
              testing::HasSubstr("<!-- generated from"));
}

}  // namespace
}  // namespace bdcp
