// A program as its own launcher: one process per rank on this host.
#pragma once

#include <string>
#include <vector>

namespace bdcp::autotune {

/// Runs this program (`name`, for messages) `world` times with `arguments` and a launcher's variables; rank 0
/// writes to this process's stdout. Returns when all have ended: the exit code of the first that failed. A
/// process that died is named on stderr, and the others get a moment to name it themselves.
int spawn_ranks(const std::string& name, int world, const std::vector<std::string>& arguments);

}  // namespace bdcp::autotune
