// What tells hosts apart.
#pragma once

#include <string>

namespace bdcp::comm {

/// Host name and boot id: equal for two processes iff they run on the same booted machine (and see the same
/// host name). Looked up once per process.
const std::string& host_identity();

}  // namespace bdcp::comm
