// What a loaded Policy holds: the field table and the assignments of each layer, lowest precedence first.
#pragma once
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bdcp/policy.h"
#include "policy/field_table.h"
#include "policy/measured_exchange.h"
#include "policy/schema.h"

namespace bdcp {

struct Policy::State {
  struct Assignment {
    std::size_t field = 0;  ///< index into `fields`
    nlohmann::json value;
    std::string origin;
    /// For fields compared by content: the file's hash, and what it says.
    std::string content;
    std::shared_ptr<const policy::MeasuredExchange> measured;
  };
  struct GroupRule {
    nlohmann::json match;
    std::vector<Assignment> set;
  };
  std::vector<policy::Field> fields;
  std::vector<Assignment> file;       ///< the document outside of "groups"
  std::vector<GroupRule> groups;      ///< in document order
  std::vector<Assignment> overrides;  ///< code, then environment
};

}  // namespace bdcp

namespace bdcp::policy {

/// Reads all sources; see Policy::load.
Policy::State load_state(const Policy::Sources& sources);
/// The built-in values alone.
Policy::State built_in_state();

}  // namespace bdcp::policy
