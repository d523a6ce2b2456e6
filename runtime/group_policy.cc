#include "group_policy.h"

#include <fmt/format.h>

#include <set>

#include "policy/digest.h"

namespace bdcp {

GroupPolicy::GroupPolicy(std::shared_ptr<const Policy> active_policy,
                         std::shared_ptr<const Policy> latest_policy, const Communicator& comm)
    : active(std::move(active_policy)), latest(std::move(latest_policy)) {
  const std::set<std::string_view> hosts(comm.hosts().begin(), comm.hosts().end());
  group = {comm.name(), comm.size(), static_cast<int>(hosts.size())};
  values =
      std::make_shared<const PolicyValues>(policy::merge_local(active->resolve(group), latest->resolve(group)));
  fields = policy::group_fields(*active, group);
  measured = active->measured(group);
  if (active == latest) return;
  const std::string digest = policy::group_digest(*latest, group);
  if (digest != policy::group_digest(*active, group)) pending = digest;
}

}  // namespace bdcp
