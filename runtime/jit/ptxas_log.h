// What ptxas --verbose says about a kernel.
#pragma once

#include <string>
#include <string_view>

namespace bdcp::jit {

struct KernelResources {
  int registers = 0;
  int spill_bytes = 0;  ///< stores plus loads, of the kernel and the functions it calls
  int static_smem = 0;  ///< bytes
};

/// Reads the section of `kernel`; false when the log has none.
bool parse_ptxas_log(std::string_view log, const std::string& kernel, KernelResources* resources);

}  // namespace bdcp::jit
