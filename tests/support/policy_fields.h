// Every policy field with a value other than its default, generated from the schema: for tests that set one
// field at a time. Compile support/policy_fields.cc into the test and link nlohmann_json::nlohmann_json.
#pragma once
#include <string>
#include <vector>

namespace bdcp::test {

struct PolicyFieldCase {
  std::string pointer;  ///< "/exchange/path"
  std::string name;     ///< "exchange.path", for Policy::Sources::code or BDCP_SET
  std::string
      alternative;     ///< a valid value that is not the default, as JSON; empty: the schema allows one value
  bool group = false;  ///< x-scope: must be equal on all ranks
};

/// In the schema's order. Files that values name are created in `folder`, which must exist.
std::vector<PolicyFieldCase> policy_field_cases(const std::string& folder);

}  // namespace bdcp::test
