// Compiler: a spec to a cubin through NVRTC. Thread safe; libnvrtc is loaded by the first call that needs it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/env.h"
#include "jit/kernel_spec.h"
#include "jit/nvrtc_library.h"
#include "jit/ptxas_log.h"
#include "jit/spec_key.h"

namespace bdcp::jit {

class Compiler {
 public:
  explicit Compiler(Env env);

  /// Identity of the NVRTC that compile() would use; empty where there is none. Loads nothing.
  const std::string& nvrtc_build();
  /// Empty, or why nothing can be compiled. Loads libnvrtc.
  std::string why_unavailable();
  /// As NVRTC reports them: "sm_80", ... Throws Error(library_missing).
  std::vector<std::string> supported_archs();

  struct Result {
    std::vector<char> cubin;
    KernelResources resources;
    std::string log;
    double ms = 0;
  };
  /// Throws Error(compile_failed) with NVRTC's log, Error(unsupported) for an arch NVRTC does not know,
  /// Error(library_missing) naming libnvrtc or its builtins.
  Result compile(const KernelSpec& spec, const SpecKey& key);

 private:
  const NvrtcFile& file();
  std::shared_ptr<const NvrtcLibrary> library();
  std::shared_ptr<const NvrtcLibrary> try_library(std::string* why);

  const Env env_;
  std::once_flag located_;
  NvrtcFile file_;
  std::string why_not_found_;
  std::mutex mutex_;
  std::shared_ptr<const NvrtcLibrary> library_;
};

/// Throws Error(unsupported) unless `arch` is sm_<one of archs>, with suffix a (9.0 and newer) or f (10.0 and
/// newer) at most.
void check_arch(const std::string& arch, const std::vector<int>& archs, const std::string& nvrtc);

}  // namespace bdcp::jit
