// The groups "normalize", "configure" and "constants" of reference_cases.json. The reference's knobs
// attn_backend and kv_exchange are attention.backend and exchange.path here. Differences, by design: unset
// means auto instead of flash and allgather; flash and te both mean "fast varlen kernel", which is automatic;
// dense is reference.
#include "support/reference_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "policy_support.h"

namespace bdcp {
namespace {

using nlohmann::json;

const std::map<std::string, std::string> kFieldOf{{"attn_backend", "attention.backend"},
                                                  {"kv_exchange", "exchange.path"}};
const std::map<std::string, std::string> kOurName{{"flash", "auto"},      {"te", "auto"},
                                                  {"dense", "reference"}, {"allgather", "allgather"},
                                                  {"halo", "halo"},       {"a2a", "a2a"}};

// The name that a spelling comes to, or "unknown".
std::string parsed(const std::string& knob, const std::string& text) {
  if (knob == "kv_exchange") {
    const auto path = parse_exchange_path(text);
    return path ? std::string(to_string(*path)) : "unknown";
  }
  const auto backend = parse_backend(text);
  return backend ? std::string(to_string(*backend)) : "unknown";
}

std::string resolved(const Policy& policy, const std::string& knob) {
  const PolicyValues values = policy.resolve();
  return std::string(knob == "kv_exchange" ? to_string(values.exchange.path)
                                           : to_string(values.attention.backend));
}

TEST(PolicyReferenceCases, Normalize) {
  const json& all = test::reference_cases();
  ASSERT_EQ(all["normalize"].size(), 8u);
  for (const json& entry : all["normalize"]) {
    SCOPED_TRACE(entry["id"]);
    const std::string knob = entry["knob"], field = kFieldOf.at(knob);
    const std::string text = entry["input"].is_null() ? "" : entry["input"];
    if (entry.contains("expect_error")) {
      EXPECT_EQ(parsed(knob, text), "unknown");
      const std::string message = test::error_of([&] { test::from_code({{field, text}}); });
      EXPECT_THAT(message,
                  testing::AllOf(testing::HasSubstr("/exchange/path"), testing::HasSubstr("\"bogus\""),
                                 testing::HasSubstr("allowed: \"auto\", \"allgather\", \"halo\", \"a2a\"")));
      continue;
    }
    const bool is_default = entry["input"].is_null() || entry["input"] == "AUTO";
    const std::string expected = is_default ? "auto" : kOurName.at(entry["expect"]);
    EXPECT_EQ(parsed(knob, text), expected);
    EXPECT_EQ(resolved(test::from_code({{field, text}}), knob), expected);
    json document;
    document[field.substr(0, field.find('.'))][field.substr(field.find('.') + 1)] = entry["input"];
    EXPECT_EQ(resolved(test::from_json(document.dump()), knob), expected);
  }
}

TEST(PolicyReferenceCases, Configure) {
  const json& all = test::reference_cases();
  ASSERT_EQ(all["configure"].size(), 1u);
  for (const json& entry : all["configure"]) {
    SCOPED_TRACE(entry["id"]);
    test::Pairs code;
    for (const auto& [knob, value] : entry["input"].items()) code.emplace_back(kFieldOf.at(knob), value);
    const Policy policy = test::from_code(code);
    for (const auto& [knob, value] : entry["expect"].items())
      EXPECT_EQ(resolved(policy, knob), kOurName.at(value));
  }
}

TEST(PolicyReferenceCases, Constants) {
  const json& constants = test::reference_cases()["constants"];
  for (const std::string knob : {"attn_backend", "kv_exchange"}) {
    for (const auto& [name, synonyms] : constants[knob]["synonyms"].items())
      for (const std::string synonym : synonyms) {
        std::string loud = "  ";
        for (const char c : synonym) loud += c == '_' ? '-' : static_cast<char>(std::toupper(c));
        EXPECT_EQ(parsed(knob, synonym), kOurName.at(name)) << synonym;
        EXPECT_EQ(parsed(knob, loud + "\t\n"), kOurName.at(name)) << loud;
      }
    // normalize_rule: '', 'auto' and 'default' are the default, which is auto here.
    for (const char* text : {"", "  ", "auto", "Default", " AUTO "})
      EXPECT_EQ(parsed(knob, text), "auto") << text;
    for (const char* text : {"bogus", "local", "all gather", "null"})
      EXPECT_EQ(parsed(knob, text), "unknown") << text;
    EXPECT_EQ(resolved(Policy(), knob), "auto");
  }
  for (const char* backend : {"hopper", "portable", "reference", "host"})
    EXPECT_EQ(parsed("attn_backend", backend), backend);
  // NEMO_CP_ALLOW_XNODE: only '1' counts.
  EXPECT_EQ(test::from_env({{"BDCP_ALLOW_XNODE", "1"}}).resolve().exchange.cross_node,
            PolicyValues::CrossNode::needed_only);
}

}  // namespace
}  // namespace bdcp
