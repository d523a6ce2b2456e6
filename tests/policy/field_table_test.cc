// The field table and the schema describe the same fields.
#include "policy/field_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "policy/digest.h"
#include "policy/json_file.h"
#include "policy_support.h"
#include "support/policy_fields.h"

namespace bdcp::policy {
namespace {

using nlohmann::json;

class PolicyFieldTable : public testing::Test {
 protected:
  const Schema schema_{"schema/policy.schema.json"};
  const std::vector<Field> table_ = field_table(schema_);
};

TEST_F(PolicyFieldTable, HoldsEveryFieldOfTheSchemaOnce) {
  std::vector<std::string> table;
  for (const Field& field : table_) table.push_back(field.pointer);
  std::vector<std::string> leaves;
  for (const std::string& leaf : schema_.leaves())
    if (leaf != "/schema_version" && leaf != "/groups") leaves.push_back(leaf);
  EXPECT_THAT(table, testing::UnorderedElementsAreArray(leaves));
}

TEST_F(PolicyFieldTable, DefaultsOfTheSchemaAreThoseOfPolicyValues) {
  const PolicyValues values;
  for (const Field& field : table_) {
    const json& node = *schema_.node(field.pointer);
    EXPECT_EQ(canonical(field.get(values)), canonical(node.at("default"))) << field.pointer;
    EXPECT_TRUE(admits_type(node, node.at("default"))) << field.pointer;
    EXPECT_FALSE(node.at("description").get<std::string>().empty()) << field.pointer;
    EXPECT_EQ(node.at("x-scope"), field.group ? "group" : "local") << field.pointer;
  }
}

TEST_F(PolicyFieldTable, EveryValueOfAnEnumIsStoredAndReadBack) {
  for (const Field& field : table_) {
    const json& node = *schema_.node(field.pointer);
    if (!node.contains("enum")) continue;
    for (const json& value : node["enum"]) {
      PolicyValues values;
      field.set(values, value);
      EXPECT_EQ(field.get(values), value) << field.pointer;
    }
  }
}

TEST_F(PolicyFieldTable, EnumNamesAreThoseOfTheType) {
  for (const Field& field : table_) {
    if (field.pointer != "/exchange/path" && field.pointer != "/attention/backend") continue;
    for (const json& value : schema_.node(field.pointer)->at("enum")) {
      PolicyValues values;
      field.set(values, value);
      EXPECT_EQ(value, field.pointer == "/exchange/path" ? to_string(values.exchange.path)
                                                         : to_string(values.attention.backend));
    }
  }
}

TEST_F(PolicyFieldTable, FieldsAreIndependent) {
  const test::ScratchFolder folder;
  const PolicyValues built_in;
  for (const test::PolicyFieldCase& changed : test::policy_field_cases(folder.path())) {
    if (changed.alternative.empty()) continue;
    PolicyValues values;
    for (const Field& field : table_)
      if (field.pointer == changed.pointer) field.set(values, json::parse(changed.alternative));
    for (const Field& field : table_)
      EXPECT_EQ(field.get(values) != field.get(built_in), field.pointer == changed.pointer)
          << changed.pointer << " and " << field.pointer;
  }
}

TEST_F(PolicyFieldTable, MergeLocalTakesLocalFieldsOnly) {
  const test::ScratchFolder folder;
  PolicyValues other;
  for (const test::PolicyFieldCase& changed : test::policy_field_cases(folder.path()))
    for (const Field& field : table_)
      if (field.pointer == changed.pointer && !changed.alternative.empty())
        field.set(other, json::parse(changed.alternative));
  const PolicyValues built_in;
  const PolicyValues merged = merge_local(built_in, other);
  for (const Field& field : table_)
    EXPECT_EQ(field.get(merged), field.get(field.group ? built_in : other)) << field.pointer;
}

TEST_F(PolicyFieldTable, EnvironmentAliasesOfTheSchemaWork) {
  std::set<std::string> variables;
  for (const Field& field : table_) {
    const json& node = *schema_.node(field.pointer);
    if (!node.contains("x-env")) continue;
    const json& env = node["x-env"];
    const std::string variable = env.is_string() ? env : env["name"];
    variables.insert(variable);
    const std::string text = env.is_object() ? "1" : node.contains("enum") ? node["enum"][0] : json("/x");
    const PolicyField resolved = test::field_of(test::from_env({{variable, text}}), field.pointer);
    EXPECT_EQ(resolved.origin, "environment " + variable);
    EXPECT_EQ(json::parse(resolved.value), env.is_object() ? env["values"][text] : json(text));
  }
  EXPECT_THAT(variables, testing::ElementsAre("BDCP_ALLOW_XNODE", "BDCP_CACHE_DIR", "BDCP_LOG"));
}

}  // namespace
}  // namespace bdcp::policy
