// What the policies in force mean to one communicator, worked out once and not in every step.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bdcp/communicator.h"
#include "bdcp/policy.h"

namespace bdcp {

/// Immutable.
struct GroupPolicy {
  /// `active`: whose group fields hold. `latest`: whose local fields hold; its group fields wait for all ranks.
  GroupPolicy(std::shared_ptr<const Policy> active, std::shared_ptr<const Policy> latest,
              const Communicator& comm);
  bool holds_for(const Policy* active_policy, const Policy* latest_policy, const Communicator& comm) const {
    return active.get() == active_policy && latest.get() == latest_policy && group.name == comm.name();
  }

  std::shared_ptr<const Policy> active, latest;
  GroupFacts group;
  std::shared_ptr<const PolicyValues> values;
  std::shared_ptr<const policy::MeasuredExchange> measured;  ///< active's; null: none
  std::string pending;  ///< digest of latest's group fields where they differ from active's; else empty
  /// Active's group fields, as ranks compare them.
  std::vector<std::pair<std::string, std::string>> fields;
};

}  // namespace bdcp
