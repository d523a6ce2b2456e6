#include "autotune/exit_code.h"

namespace bdcp::autotune {

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::invalid_layout:
    case ErrorCode::invalid_policy:
      return kExitInvalidInput;
    case ErrorCode::unsupported:
    case ErrorCode::backend_unavailable:
    case ErrorCode::library_missing:
    case ErrorCode::out_of_memory:
    case ErrorCode::io_error:
      return kExitEnvironment;
    default:
      return kExitCheckFailed;
  }
}

}  // namespace bdcp::autotune
