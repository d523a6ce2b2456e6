// Names of paths and backends. The synonyms are the schema's.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "bdcp/policy.h"
#include "policy/field_table.h"
#include "policy/schema.h"

namespace bdcp {
namespace {

// Reads `text` as the field would, into built-in values; nullopt: not one of its names.
std::optional<PolicyValues> with_field(const std::string& pointer, std::string_view text) {
  const policy::Schema schema("schema/policy.schema.json");
  const nlohmann::json& node = *schema.node(pointer);
  const nlohmann::json name = policy::normalised(node, nlohmann::json(text));
  const nlohmann::json& known = node.at("enum");
  if (std::find(known.begin(), known.end(), name) == known.end()) return std::nullopt;
  PolicyValues values;
  for (const policy::Field& field : policy::field_table(schema))
    if (field.pointer == pointer) field.set(values, name);
  return values;
}

}  // namespace

std::optional<ExchangePath> parse_exchange_path(std::string_view text) {
  const auto values = with_field("/exchange/path", text);
  return values ? std::optional(values->exchange.path) : std::nullopt;
}

std::optional<BackendKind> parse_backend(std::string_view text) {
  const auto values = with_field("/attention/backend", text);
  return values ? std::optional(values->attention.backend) : std::nullopt;
}

}  // namespace bdcp
