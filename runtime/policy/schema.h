// A JSON schema of configs/schema, and what it says about a document in words a user can act on.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace bdcp::policy {

/// Immutable once built; safe to share between threads.
class Schema {
 public:
  /// By name below configs/ ("schema/policy.schema.json").
  explicit Schema(std::string_view embedded_name);
  ~Schema();
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  const nlohmann::json& root() const;
  /// The sub-schema that governs a JSON pointer of a document, references followed; null: none does.
  const nlohmann::json* node(const std::string& pointer) const;
  /// Pointers of all leaves outside of arrays, in the schema's (alphabetical) order: "/exchange/path".
  std::vector<std::string> leaves() const;

  /// One line per problem: "<pointer>: <value>: <what is wrong>; allowed: <what is>".
  std::vector<std::string> problems(const nlohmann::json& document) const;
  /// Throws Error(invalid_policy) with all problems, each line headed by `origin`. A newer schema_version is
  /// refused by name, before anything else is looked at.
  void require(const nlohmann::json& document, const std::string& origin) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

/// What a sub-schema accepts, in words: `"auto", "halo"`, `an integer from 2 to 64, or null`.
std::string allowed_text(const nlohmann::json& node);
/// Whether the sub-schema's "type" admits the value's type.
bool admits_type(const nlohmann::json& node, const nlohmann::json& value);
/// The value with x-synonyms of the sub-schema replaced (null counts as ""); other values come back unchanged.
nlohmann::json normalised(const nlohmann::json& node, const nlohmann::json& value);

}  // namespace bdcp::policy
