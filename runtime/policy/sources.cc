#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/env.h"
#include "bdcp/error.h"
#include "policy/digest.h"
#include "policy/json_file.h"
#include "policy/policy_state.h"

namespace bdcp::policy {
namespace {

using nlohmann::json;
using Assignment = Policy::State::Assignment;
using Override = std::pair<std::string, std::string>;  // field name, text

struct Loader {
  const Schema schema{"schema/policy.schema.json"};
  Policy::State state{field_table(schema), {}, {}, {}};

  void load_document(json document, const std::string& origin, const std::filesystem::path& folder);
  void load_overrides(const std::vector<Override>& entries, const std::string& origin);

 private:
  void normalise(json& section) const;
  std::vector<Assignment> assignments(const json& section, const std::string& prefix, const std::string& origin,
                                      const std::filesystem::path& folder) const;
  Assignment assign(std::size_t field, json value, const std::string& at, const std::string& origin,
                    const std::filesystem::path& folder) const;
  std::size_t find(const std::string& name, const std::string& value, const std::string& origin) const;
  json read_value(const Field& field, const std::string& text) const;
};

void Loader::normalise(json& section) const {
  for (const Field& field : state.fields) {
    const json::json_pointer pointer(field.pointer);
    if (section.contains(pointer)) section[pointer] = normalised(*schema.node(field.pointer), section[pointer]);
  }
}

std::string resolve_path(const std::string& path, const std::filesystem::path& folder) {
  return folder.empty() ? path : (folder / path).lexically_normal().string();
}

Assignment Loader::assign(std::size_t index, json value, const std::string& at, const std::string& origin,
                          const std::filesystem::path& folder) const {
  const Field& field = state.fields[index];
  if (field.path && value.is_string()) value = resolve_path(value, folder);
  if (field.path && value.is_array())
    for (json& entry : value) entry = resolve_path(entry, folder);
  Assignment assignment{index, std::move(value), origin, {}, {}};
  // Read now, and once: a file that is missing or wrong on one rank must be an error of that rank's load, not
  // of a later step, and ranks use the bytes that they compare.
  if (field.by_content && assignment.value.is_string()) {
    const std::string path = assignment.value, what = fmt::format("{}: {}: file", origin, at);
    const std::string text = read_text_file(path, what);
    assignment.content = content_hash(text);
    assignment.measured = std::make_shared<const MeasuredExchange>(
        MeasuredExchange::parse(text, fmt::format("{} {}", what, show(path))));
  }
  return assignment;
}

std::vector<Assignment> Loader::assignments(const json& section, const std::string& prefix,
                                            const std::string& origin,
                                            const std::filesystem::path& folder) const {
  std::vector<Assignment> out;
  for (std::size_t i = 0; i < state.fields.size(); ++i) {
    const json::json_pointer pointer(state.fields[i].pointer);
    if (section.contains(pointer))
      out.push_back(assign(i, section[pointer], prefix + state.fields[i].pointer, origin, folder));
  }
  return out;
}

void Loader::load_document(json document, const std::string& origin, const std::filesystem::path& folder) {
  normalise(document);
  if (document.contains("groups") && document["groups"].is_array())
    for (json& group : document["groups"])
      if (group.is_object() && group.contains("set")) normalise(group["set"]);
  schema.require(document, origin);
  state.file = assignments(document, "", origin, folder);
  if (!document.contains("groups")) return;
  for (std::size_t i = 0; i < document["groups"].size(); ++i) {
    const json& group = document["groups"][i];
    const std::string prefix = fmt::format("/groups/{}/set", i);
    state.groups.push_back(
        {group["match"], assignments(group["set"], prefix, fmt::format("{} /groups/{}", origin, i), folder)});
  }
}

std::size_t Loader::find(const std::string& name, const std::string& value, const std::string& origin) const {
  std::vector<std::string> names;
  std::string hint;
  for (std::size_t i = 0; i < state.fields.size(); ++i) {
    const Field& field = state.fields[i];
    if (name == field.name || name == field.pointer) return i;
    // "path" for "exchange.path" is as common a slip as a misspelling.
    if (field.name.ends_with("." + name)) hint = fmt::format("; did you mean \"{}\"?", field.name);
    names.push_back(field.name);
  }
  if (hint.empty()) hint = suggestion(name, names);
  throw Error(ErrorCode::invalid_policy, fmt::format("{}: {}: {}: unknown field{}; allowed: {}", origin, name,
                                                     show(value), hint, fmt::join(names, ", ")));
}

// JSON where that gives a type the field takes, else bare text where the field takes a string.
json Loader::read_value(const Field& field, const std::string& text) const {
  const json& node = *schema.node(field.pointer);
  json parsed = json::parse(text, nullptr, false);
  const bool is_json = !parsed.is_discarded();
  if (is_json && admits_type(node, parsed)) return normalised(node, parsed);
  if (!is_json || admits_type(node, json(""))) return normalised(node, text);
  return parsed;
}

void Loader::load_overrides(const std::vector<Override>& entries, const std::string& origin) {
  for (const auto& [name, text] : entries) {
    const std::size_t index = find(name, text, origin);
    const Field& field = state.fields[index];
    json value = read_value(field, text);
    json document = json::object();
    document[json::json_pointer(field.pointer)] = value;
    schema.require(document, origin);
    state.overrides.push_back(assign(index, std::move(value), field.pointer, origin, {}));
  }
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1));
}

// "exchange.path=halo;kernels.seed_dirs=["a;b"]": a semicolon inside a JSON string does not separate.
std::vector<Override> split_settings(const std::string& text, const std::string& origin) {
  std::vector<Override> entries;
  std::size_t begin = 0;
  bool quoted = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) {
      if (quoted && text[i] == '\\') {
        ++i;
        continue;
      }
      if (text[i] == '"') quoted = !quoted;
      if (quoted || text[i] != ';') continue;
    }
    const std::string entry = trimmed(std::string_view(text).substr(begin, std::min(i, text.size()) - begin));
    begin = i + 1;
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == entry.npos)
      throw Error(ErrorCode::invalid_policy,
                  fmt::format("{}: {} is not allowed; allowed: field=value;field=value", origin, show(entry)));
    entries.emplace_back(trimmed(entry.substr(0, equals)), trimmed(entry.substr(equals + 1)));
  }
  if (quoted)
    throw Error(ErrorCode::invalid_policy,
                fmt::format("{}: {} is not allowed: a quote is not closed; allowed: field=value;field=value",
                            origin, show(text)));
  return entries;
}

void load_environment(Loader& loader, const Env& env) {
  for (const auto& [variable, name, text] : {std::tuple("BDCP_CACHE_DIR", "kernels.cache_dir", env.cache_dir),
                                             std::tuple("BDCP_LOG", "log.level", env.log)})
    if (text) loader.load_overrides({{name, *text}}, fmt::format("environment {}", variable));
  if (env.allow_xnode) {
    const json& values = loader.schema.node("/exchange/cross_node")->at("x-env").at("values");
    const auto value = values.find(*env.allow_xnode);
    if (value == values.end())
      throw Error(
          ErrorCode::invalid_policy,
          fmt::format("environment BDCP_ALLOW_XNODE: /exchange/cross_node: {} is not allowed; allowed: \"0\", "
                      "\"1\"",
                      show(*env.allow_xnode)));
    if (!value->is_null())
      loader.load_overrides({{"exchange.cross_node", value->get<std::string>()}},
                            "environment BDCP_ALLOW_XNODE");
  }
  if (env.set) {
    const std::string origin = "environment BDCP_SET";
    loader.load_overrides(split_settings(*env.set, origin), origin);
  }
}

}  // namespace

Policy::State built_in_state() { return Loader().state; }

Policy::State load_state(const Policy::Sources& sources) {
  if (sources.file && sources.json)
    throw Error(ErrorCode::invalid_policy,
                fmt::format("policy sources: file {} and json text are both given; allowed: one of them",
                            show(*sources.file)));
  Env env;
  if (!sources.ignore_env)
    env = sources.environment ? Env::from_pairs(*sources.environment) : Env::from_process();
  Loader loader;
  if (sources.json) {
    loader.load_document(parse_document(*sources.json, "policy json"), "policy json", {});
  } else if (const auto& path = sources.file ? sources.file : env.policy) {
    const std::string what = sources.file ? "policy file" : "policy file (BDCP_POLICY)";
    loader.load_document(parse_document(read_text_file(*path, what), *path), *path,
                         std::filesystem::path(*path).parent_path());
  }
  loader.load_overrides(sources.code, "code");
  load_environment(loader, env);
  return std::move(loader.state);
}

}  // namespace bdcp::policy
