// tests/data/reference_case_tests.json says which test runs which public case of the reference. Every case has
// an entry, no entry is stale, and every test it names exists.
#include "support/reference_cases.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace bdcp {
namespace {

using nlohmann::json;

void collect_ids(const json& node, std::set<std::string>& ids) {
  if (node.is_object() && node.contains("id") && node.at("id").is_string())
    ids.insert(node.at("id").get<std::string>());
  if (!node.is_structured()) return;
  for (const json& child : node) collect_ids(child, ids);
}

/// Ids of all cases; lists of plain words count as one case under the list's name, scenarios under theirs.
std::set<std::string> case_ids() {
  std::set<std::string> ids;
  const json& cases = test::reference_cases();
  collect_ids(cases, ids);
  for (const auto& [name, group] : cases.items()) {
    if (group.is_array() && !group.empty() && group[0].is_string()) ids.insert(name);
  }
  for (const json& scenario : cases.at("two_rank").at("scenarios")) {
    ids.insert("two_rank " + scenario.at("name").get<std::string>());
  }
  return ids;
}

/// "Suite.Test" of every TEST, TEST_F and TEST_P in the sources below tests/.
std::set<std::string> test_names() {
  std::set<std::string> names;
  const std::regex macro(R"(\bTEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\))");
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::string(BDCP_SOURCE_DIR) + "/tests")) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream file(entry.path());
    std::string text, line;
    while (std::getline(file, line)) {
      // A macro may break after its comma; anything else cannot start one.
      if (line.find("TEST") == std::string::npos) continue;
      std::string next;
      if (line.find(')') == std::string::npos && std::getline(file, next)) line += next;
      text += line + '\n';
    }
    for (std::sregex_iterator it(text.begin(), text.end(), macro), end; it != end; ++it) {
      names.insert((*it)[1].str() + "." + (*it)[2].str());
    }
  }
  return names;
}

TEST(ReferenceCaseTable, EveryCaseHasAnEntryAndNoOther) {
  const json table = test::load_test_json("reference_case_tests.json");
  std::set<std::string> entries;
  for (const auto& [id, tests] : table.items()) entries.insert(id);
  EXPECT_EQ(entries, case_ids());
}

TEST(ReferenceCaseTable, EveryNamedTestExists) {
  const std::set<std::string> names = test_names();
  const std::regex pending(R"(pending: .+, issue \d+)");
  ASSERT_TRUE(names.count("ReferenceCaseTable.EveryNamedTestExists"));
  std::set<std::string> missing;
  const json table = test::load_test_json("reference_case_tests.json");
  for (const auto& [id, tests] : table.items()) {
    for (const json& one : tests.is_array() ? tests : json::array({tests})) {
      const auto name = one.get<std::string>();
      if (!std::regex_match(name, pending) && !names.count(name)) missing.insert(name + " (" + id + ")");
    }
  }
  EXPECT_EQ(missing, std::set<std::string>());
}

}  // namespace
}  // namespace bdcp
