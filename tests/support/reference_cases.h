// tests/data/reference_cases.json: inputs and expected outcomes of the reference's public tests.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace bdcp::test {

inline nlohmann::json load_test_json(const std::string& name) {
  std::ifstream file(std::string(BDCP_TEST_DATA) + "/" + name);
  if (!file) throw std::runtime_error("cannot read test data " + name);
  return nlohmann::json::parse(file);
}

inline const nlohmann::json& reference_cases() {
  static const nlohmann::json cases = load_test_json("reference_cases.json");
  return cases;
}

/// The case `id` of a list; throws if there is none, so that a renamed case fails its test.
inline const nlohmann::json& find_case(const nlohmann::json& list, const std::string& id) {
  for (const nlohmann::json& one : list) {
    if (one.at("id") == id) return one;
  }
  throw std::runtime_error("no reference case " + id);
}

}  // namespace bdcp::test
