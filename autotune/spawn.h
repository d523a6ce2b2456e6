// A program as its own launcher: one process per rank on this host.
#pragma once

#include <string>
#include <vector>

namespace bdcp::autotune {

/// Runs this program (`name`, for messages) `world` times with `arguments` and a launcher's variables; rank 0
/// writes to this process's stdout. Returns when all have ended: the exit code of the first that failed. A
/// process that died is named on stderr, and the others get a moment to name it themselves. SIGTERM, SIGINT and
/// SIGHUP are passed on, and end this process once the ranks have ended. For the main thread: the kernel kills
/// the ranks when the thread that started them ends. One call at a time.
int spawn_ranks(const std::string& name, int world, const std::vector<std::string>& arguments);

/// The first thing a program does that starts itself by spawn_ranks: a rank is killed when its launcher ends,
/// however that comes about. Does nothing in a process that spawn_ranks has not started.
void end_with_launcher();

}  // namespace bdcp::autotune
