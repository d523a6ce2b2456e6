#include "policy_markdown.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "bdcp/error.h"
#include "bdcp/policy.h"
#include "policy/schema.h"

namespace bdcp::docs {
namespace {

using nlohmann::json;

constexpr std::string_view kBegin =
    "<!-- generated from schema/policy.schema.json by bdcp-policy-reference -->\n";
constexpr std::string_view kEnd = "<!-- end of the generated part -->\n";

std::string environment(const json& node) {
  if (!node.contains("x-env")) return "";
  const json& env = node["x-env"];
  if (env.is_string()) return fmt::format("`{}`", env.get<std::string>());
  std::vector<std::string> values;
  for (const auto& [text, value] : env["values"].items())
    if (!value.is_null())
      values.push_back(fmt::format("`{}={}`: {}", env["name"].get<std::string>(), text, value.dump()));
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string notes(const json& node) {
  std::string text = node["description"];
  if (node.value("x-path", false)) text += " Relative paths resolve against the policy file.";
  if (node.contains("x-synonyms"))
    for (const auto& [name, synonyms] : node["x-synonyms"].items()) {
      std::vector<std::string> quoted;
      for (const json& synonym : synonyms) quoted.push_back("`" + synonym.dump() + "`");
      text += fmt::format(" `{}` is also written {}.", name, fmt::join(quoted, ", "));
    }
  return text;
}

std::string unit(const json& node) {
  return node.contains("x-unit") ? fmt::format(" ({})", node["x-unit"].get<std::string>()) : "";
}

}  // namespace

std::string policy_markdown() {
  const policy::Schema schema("schema/policy.schema.json");
  std::string out;
  std::string section;
  for (const PolicyField& field : Policy().fields()) {
    const std::string name = field.pointer.substr(1, field.pointer.find('/', 1) - 1);
    if (name != section) {
      section = name;
      out += fmt::format(
          "\n### {}\n\n{}\n\n| field | default | allowed | scope | environment | meaning "
          "|\n|---|---|---|---|---|---|\n",
          section, schema.node("/" + section)->at("description").get<std::string>());
    }
    const json& node = *schema.node(field.pointer);
    out += fmt::format("| `{}` | `{}` | {}{} | {} | {} | {} |\n", field.pointer.substr(section.size() + 2),
                       node["default"].dump(), policy::allowed_text(node), unit(node),
                       node["x-scope"].get<std::string>(), environment(node), notes(node));
  }
  out += "\n### groups[].match\n\n";
  const json& match = *schema.node("/groups/0/match");
  out += fmt::format("{}\n\n| fact | allowed | meaning |\n|---|---|---|\n",
                     match["description"].get<std::string>());
  for (const auto& [fact, node] : match["properties"].items())
    out += fmt::format("| `{}` | {}{} | {} |\n", fact, policy::allowed_text(node), unit(node),
                       node["description"].get<std::string>());
  return out + "\n";
}

std::string with_policy_reference(std::string_view readme) {
  const std::size_t begin = readme.find(kBegin), end = readme.find(kEnd);
  if (begin == readme.npos || end == readme.npos || end < begin)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the README has no generated part; allowed: one between the lines {} and {}",
                            kBegin.substr(0, kBegin.size() - 1), kEnd.substr(0, kEnd.size() - 1)));
  return fmt::format("{}{}{}", readme.substr(0, begin + kBegin.size()), policy_markdown(), readme.substr(end));
}

}  // namespace bdcp::docs
