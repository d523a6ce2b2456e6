// In-process ranks: a group whose members are threads of this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"

namespace bdcp::comm {

/// One Group per rank, each to be driven by a thread of its own. `hosts` holds one identity per rank.
std::vector<std::shared_ptr<Group>> make_in_process_groups(std::string name, std::vector<std::string> hosts);

}  // namespace bdcp::comm
