#include "support/policy_fields.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bdcp/policy.h"
#include "support/measured_file.h"

namespace bdcp::test {
namespace {

using json = nlohmann::ordered_json;

bool allows(const json& node, const char* type) {
  const json& types = node.at("type");
  return types == type || (types.is_array() && std::find(types.begin(), types.end(), type) != types.end());
}

std::string alternative(const json& node, const std::string& folder) {
  const json& standard = node.at("default");
  if (node.contains("enum")) {
    for (const json& value : node["enum"])
      if (value != standard && !value.is_null()) return value.dump();
    return "";
  }
  if (allows(node, "boolean")) return standard == true ? "false" : "true";
  if (allows(node, "integer") || allows(node, "number"))
    return standard.is_null() ? node.at("minimum").dump() : json(standard.get<int>() + 1).dump();
  if (allows(node, "array")) return json::array({folder + "/alternative"}).dump();
  if (allows(node, "string")) {
    const std::string path = folder + "/alternative";
    std::ofstream(path) << measured_file();  // where a field names a file, it is this one
    return json(path).dump();
  }
  throw std::runtime_error("no alternative for " + node.dump());
}

}  // namespace

std::vector<PolicyFieldCase> policy_field_cases(const std::string& folder) {
  const json schema = json::parse(Policy::schema_json());
  std::vector<PolicyFieldCase> cases;
  for (const auto& [section, reference] : schema.at("properties").items()) {
    const json& body = reference.contains("$ref") ? schema.at("definitions").at(section) : reference;
    if (!body.contains("properties")) continue;  // schema_version and groups are not fields
    for (const auto& [key, node] : body["properties"].items())
      cases.push_back({"/" + section + "/" + key, section + "." + key, alternative(node, folder),
                       node.at("x-scope") == "group"});
  }
  return cases;
}

}  // namespace bdcp::test
