// The one table of policy fields. Resolving, dumping, comparing and reloading all walk it; what a field is
// called and where it lives is written here, everything else about it (default, scope, environment) in the
// schema.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bdcp/policy.h"
#include "policy/schema.h"

namespace bdcp::policy {

struct Field {
  std::string pointer;      ///< "/exchange/path"
  std::string name;         ///< "exchange.path", as overrides spell it
  bool group = false;       ///< must be equal on all ranks
  bool path = false;        ///< x-path: relative paths resolve against the policy file
  bool by_content = false;  ///< x-compare: ranks compare a file's content
  std::function<void(PolicyValues&, const nlohmann::json&)> set;  ///< the value has passed the schema
  std::function<nlohmann::json(const PolicyValues&)> get;
};

/// In the order of PolicyValues. Throws Error(internal) for a field the schema lacks.
std::vector<Field> field_table(const Schema& schema);

}  // namespace bdcp::policy
