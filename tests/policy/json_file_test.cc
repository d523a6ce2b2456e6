#include "policy/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdcp::policy {
namespace {

TEST(PolicySuggestion, FindsTheLikelySlipAndNothingElse) {
  const std::vector<std::string> names{"path", "transport", "cross_node", "landing_slots"};
  EXPECT_EQ(nearest("pth", names), "path");
  EXPECT_EQ(nearest("crossnode", names), "cross_node");
  EXPECT_EQ(nearest("landing_slot", names), "landing_slots");
  EXPECT_EQ(nearest("zzzzzz", names), "");
  EXPECT_EQ(nearest("ab", names), "");
  EXPECT_EQ(nearest("", {}), "");
  EXPECT_EQ(suggestion("pth", names), "; did you mean \"path\"?");
}

TEST(EmbeddedConfigs, HoldSchemasAndModels) {
  EXPECT_FALSE(embedded_config("schema/policy.schema.json").empty());
  EXPECT_TRUE(embedded_config("schema/none.json").empty());
  EXPECT_THAT(embedded_config_names("schema/"),
              testing::IsSupersetOf(
                  {"schema/model.schema.json", "schema/policy.schema.json", "schema/tuned.schema.json"}));
}

}  // namespace
}  // namespace bdcp::policy
