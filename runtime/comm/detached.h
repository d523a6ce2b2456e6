// Threads that outlive their owner, for what may block: ending a transport whose peers are gone.
#pragma once

#include <functional>

namespace bdcp::comm {

/// Runs `body`, which must not throw, on a thread of its own. At the end of the process such threads have a few
/// seconds to end; then it goes on without them.
void run_detached(std::function<void()> body);

}  // namespace bdcp::comm
