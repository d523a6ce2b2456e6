#include "bdcp/communicator.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "comm/group.h"
#include "comm/host_identity.h"
#include "comm/in_process.h"

namespace bdcp {

/// What a world of one answers. The host is looked up when asked for: most such handles are default arguments.
struct Communicator::Single {
  std::string name = "self";
  std::once_flag once;
  std::vector<std::string> hosts;
};

Communicator::Communicator() : single_(std::make_shared<Single>()) {}

Communicator::Communicator(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {
  if (!group_) single_ = std::make_shared<Single>();
}

std::vector<Communicator> Communicator::in_process(int world_size, const InProcessOptions& options) {
  if (world_size < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("world_size is {}; allowed are 1 and above", world_size));
  const auto world = static_cast<std::size_t>(world_size);
  std::vector<std::string> hosts = options.hosts;
  if (hosts.empty()) hosts.assign(world, comm::host_identity());
  if (hosts.size() != world)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("hosts has {} entries; allowed are none, or one per rank ({})", hosts.size(), world));
  std::vector<Communicator> handles;
  for (auto& group : comm::make_in_process_groups(options.name, std::move(hosts)))
    handles.emplace_back(std::move(group));
  return handles;
}

int Communicator::rank() const { return group_ ? group_->rank() : 0; }
int Communicator::size() const { return group_ ? group_->size() : 1; }
const std::string& Communicator::name() const { return group_ ? group_->name() : single_->name; }

const std::vector<std::string>& Communicator::hosts() const {
  if (group_) return group_->hosts();
  std::call_once(single_->once, [this] { single_->hosts.assign(1, comm::host_identity()); });
  return single_->hosts;
}

void Communicator::check() const {
  if (group_) group_->check();
}

void Communicator::abort(const std::string& reason) const {
  if (group_) group_->fail(Error(ErrorCode::peer_failed, "aborted: " + reason, ErrorScope::communicator));
}

}  // namespace bdcp
