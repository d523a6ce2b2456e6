#include "policy/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "bdcp/error.h"
#include "policy/json_file.h"

namespace bdcp::policy {
namespace {

using nlohmann::json;
using Adapter = valijson::adapters::NlohmannJsonAdapter;

const json& follow(const json& root, const json& node) {
  const json* at = &node;
  while (at->contains("$ref")) at = &root.at(json::json_pointer(at->at("$ref").get<std::string>().substr(1)));
  return *at;
}

// The sub-schema one step down, or null.
const json* child(const json& root, const json& node, const std::string& token) {
  if (const auto items = node.find("items"); items != node.end()) return &follow(root, *items);
  if (const auto properties = node.find("properties"); properties != node.end())
    if (const auto it = properties->find(token); it != properties->end()) return &follow(root, *it);
  if (const auto rest = node.find("additionalProperties"); rest != node.end() && rest->is_object())
    return &follow(root, *rest);
  return nullptr;
}

std::vector<std::string> tokens_of(const std::string& pointer) {
  std::vector<std::string> tokens;
  for (json::json_pointer path(pointer); !path.empty(); path.pop_back())
    tokens.insert(tokens.begin(), path.back());
  return tokens;
}

// valijson's context is {"<root>", "[exchange]", "[path]"}.
std::string pointer_of(const std::vector<std::string>& context) {
  json::json_pointer path;
  for (std::size_t i = 1; i < context.size(); ++i) path.push_back(context[i].substr(1, context[i].size() - 2));
  return path.to_string();
}

std::vector<std::string> keys_of(const json& node) {
  std::vector<std::string> keys;
  if (const auto properties = node.find("properties"); properties != node.end())
    for (const auto& [key, unused] : properties->items()) keys.push_back(key);
  return keys;
}

void find_leaves(const json& root, const json& node, const std::string& pointer,
                 std::vector<std::string>& out) {
  const json& at = follow(root, node);
  const auto properties = at.find("properties");
  if (properties == at.end()) {
    out.push_back(pointer);
    return;
  }
  for (const auto& [key, value] : properties->items())
    find_leaves(root, value, fmt::format("{}/{}", pointer, key), out);
}

}  // namespace

struct Schema::Impl {
  json root;
  valijson::Schema compiled;
  std::vector<std::string> unknown_and_missing(const std::string& pointer, const json& value,
                                               const json& node) const;
};

Schema::Schema(std::string_view embedded_name) {
  auto impl = std::make_unique<Impl>();
  impl->root = parse_document(embedded_config(embedded_name), std::string(embedded_name));
  valijson::SchemaParser parser(valijson::SchemaParser::kDraft7);
  parser.populateSchema(Adapter(impl->root), impl->compiled);
  impl_ = std::move(impl);
}
Schema::~Schema() = default;

const nlohmann::json& Schema::root() const { return impl_->root; }

const nlohmann::json* Schema::node(const std::string& pointer) const {
  const json* at = &impl_->root;
  for (const std::string& token : tokens_of(pointer)) {
    at = child(impl_->root, *at, token);
    if (!at) return nullptr;
  }
  return at;
}

std::vector<std::string> Schema::leaves() const {
  std::vector<std::string> out;
  find_leaves(impl_->root, impl_->root, "", out);
  return out;
}

// Unknown and missing keys of one object.
std::vector<std::string> Schema::Impl::unknown_and_missing(const std::string& pointer, const json& value,
                                                           const json& node) const {
  std::vector<std::string> lines;
  if (!value.is_object()) return lines;
  const std::vector<std::string> keys = keys_of(node);
  const std::string allowed =
      fmt::format("{}{}", fmt::join(keys, ", "), node.contains("patternProperties") ? ", x-*" : "");
  if (node.value("additionalProperties", json(true)) == json(false)) {
    for (const auto& [key, entry] : value.items()) {
      if (node.contains("properties") && node["properties"].contains(key)) continue;
      if (key.starts_with("x-") && node.contains("patternProperties")) continue;
      std::string hint = suggestion(key, keys);
      // A right key in the wrong section is the other common slip.
      for (const auto& [section, body] : root["properties"].items())
        if (hint.empty() && pointer.empty() && follow(root, body).contains("properties") &&
            follow(root, body)["properties"].contains(key))
          hint = fmt::format("; did you mean \"/{}/{}\"?", section, key);
      lines.push_back(fmt::format("{}: {}: unknown key \"{}\"{}; allowed: {}",
                                  (json::json_pointer(pointer) / key).to_string(), show(entry), key, hint,
                                  allowed));
    }
  }
  for (const json& key : node.value("required", json::array()))
    if (!value.contains(key.get<std::string>()))
      lines.push_back(fmt::format("{}: {}: required key {} is missing; allowed: {}",
                                  pointer.empty() ? "/" : pointer, show(value), key.dump(), allowed));
  return lines;
}

std::vector<std::string> Schema::problems(const nlohmann::json& document) const {
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(impl_->compiled, Adapter(document), &results)) return {};
  // Every failing node is reported by valijson, and again by each of its parents: parents speak for their keys
  // only.
  std::set<std::string> pointers;
  for (const auto& error : results) pointers.insert(pointer_of(error.context));
  std::vector<std::string> lines;
  for (const std::string& pointer : pointers) {
    const json& value = document.at(json::json_pointer(pointer));
    const json* sub = node(pointer);
    if (!sub) continue;
    const std::vector<std::string> own = impl_->unknown_and_missing(pointer, value, *sub);
    lines.insert(lines.end(), own.begin(), own.end());
    const auto below = pointers.lower_bound(pointer + "/");
    const bool parent = below != pointers.end() && below->starts_with(pointer + "/");
    if (!own.empty() || parent) continue;
    std::string hint;
    if (value.is_string() && sub->contains("enum")) {
      std::vector<std::string> names;
      for (const json& name : (*sub)["enum"])
        if (name.is_string()) names.push_back(name);
      hint = suggestion(value.get<std::string>(), names);
    }
    lines.push_back(fmt::format("{}: {} is not allowed{}; allowed: {}", pointer.empty() ? "/" : pointer,
                                show(value), hint, allowed_text(*sub)));
  }
  return lines;
}

void Schema::require(const nlohmann::json& document, const std::string& origin) const {
  const json* version = node("/schema_version");
  if (version && document.contains("schema_version") && document["schema_version"].is_number_integer() &&
      document["schema_version"] > version->at("maximum"))
    throw Error(ErrorCode::invalid_policy,
                fmt::format("{}: /schema_version: {} is newer than this library reads; allowed: {}", origin,
                            show(document["schema_version"]), allowed_text(*version)));
  const std::vector<std::string> lines = problems(document);
  if (lines.empty()) return;
  throw Error(ErrorCode::invalid_policy,
              fmt::format("{}: {}", origin, fmt::join(lines, fmt::format("\n{}: ", origin))));
}

std::string allowed_text(const nlohmann::json& node) {
  if (node.contains("x-allowed")) return node["x-allowed"];
  if (node.contains("enum")) {
    std::vector<std::string> names;
    for (const json& name : node["enum"]) names.push_back(name.dump());
    return fmt::format("{}", fmt::join(names, ", "));
  }
  const json types = node.contains("type") && node["type"].is_array()
                         ? node["type"]
                         : json::array({node.value("type", "any")});
  std::vector<std::string> parts;
  for (const std::string type : types) {
    if (type == "null") {
      parts.push_back("null");
    } else if (type == "boolean") {
      parts.push_back("true, false");
    } else if (type == "string") {
      parts.push_back(node.contains("minLength") ? "a non-empty string" : "a string");
    } else if (type == "array") {
      parts.push_back(fmt::format("{}list{}{}", node.contains("minItems") ? "a non-empty " : "a ",
                                  node.value("uniqueItems", false) ? " without repeats" : "",
                                  node.contains("items") && node["items"].contains("type")
                                      ? " of: " + allowed_text(node["items"])
                                      : ""));
    } else if (type == "object") {
      const std::vector<std::string> keys = keys_of(node);
      parts.push_back(keys.empty() ? "a non-empty object"
                                   : fmt::format("an object with keys {}", fmt::join(keys, ", ")));
    } else {
      std::string range = type == "integer" ? "an integer" : "a number";
      if (node.contains("exclusiveMinimum")) range += fmt::format(" > {}", canonical(node["exclusiveMinimum"]));
      if (node.contains("minimum")) range += fmt::format(" >= {}", canonical(node["minimum"]));
      if (node.contains("maximum"))
        range += fmt::format("{}<= {}",
                             range.find('=') == range.npos && range.find('>') == range.npos ? " " : " and ",
                             canonical(node["maximum"]));
      parts.push_back(range);
    }
  }
  return fmt::format("{}", fmt::join(parts, ", or "));
}

bool admits_type(const nlohmann::json& node, const nlohmann::json& value) {
  const json type = node.value("type", json("any"));
  const auto one = [&](const std::string& name) {
    return name == "any" || (name == "null" && value.is_null()) || (name == "boolean" && value.is_boolean()) ||
           (name == "string" && value.is_string()) || (name == "array" && value.is_array()) ||
           (name == "object" && value.is_object()) || (name == "integer" && value.is_number_integer()) ||
           (name == "number" && value.is_number());
  };
  if (type.is_string()) return one(type);
  for (const std::string name : type)
    if (one(name)) return true;
  return false;
}

nlohmann::json normalised(const nlohmann::json& node, const nlohmann::json& value) {
  if (!node.contains("x-synonyms") || !(value.is_string() || value.is_null())) return value;
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  std::string name = value.is_null() ? "" : value.get<std::string>();
  name.erase(0, std::min(name.find_first_not_of(kSpace), name.size()));
  name.erase(name.find_last_not_of(kSpace) + 1);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  for (const json& known : node["enum"])
    if (known == name) return known;
  for (const auto& [known, synonyms] : node["x-synonyms"].items())
    for (const json& synonym : synonyms)
      if (synonym == name) return known;
  return value;
}

}  // namespace bdcp::policy
