// Where a measurement runs: the host, or one GPU.
#pragma once

#include <string>

#include "autotune/memory.h"
#include "bdcp/runtime.h"

namespace bdcp::autotune {

struct Place {
  Memory memory;
  int device = StepOptions::device_host;  ///< CUDA ordinal or StepOptions::device_host
};

/// "auto" (this process's GPU under a launcher, else the first one, or the host where there is none or
/// `prefer_host`), "host" or a CUDA ordinal; with its name. Throws Error(library_missing, invalid_argument).
Place open_place(const std::string& wanted, bool prefer_host, std::string* name);

}  // namespace bdcp::autotune
