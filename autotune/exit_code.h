// Exit codes of bdcp-autotune; the same as the other programs'.
#pragma once

#include "bdcp/error.h"

namespace bdcp::autotune {

inline constexpr int kExitOk = 0, kExitUsage = 2, kExitInvalidInput = 3, kExitEnvironment = 4,
                     kExitCheckFailed = 5;

/// The code a failed call ends the program with.
int exit_code_of(ErrorCode code);

}  // namespace bdcp::autotune
