// bdcp-autotune warm: compile every kernel that models need into a cache folder, without a GPU.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autotune/progress.h"
#include "base/env.h"
#include "bdcp/runtime.h"

namespace bdcp::autotune {

struct WarmOptions {
  std::vector<std::string> archs;    ///< "sm_90a"
  std::vector<std::string> models;   ///< names, files, or "all"
  Policy policy;                     ///< what steps will run under
  std::optional<std::string> cache;  ///< null: as the library chooses (BDCP_CACHE_DIR, user's cache folder)
  int jobs = 0;                      ///< 0: number of cores
  bool bar = false;                  ///< a progress bar on stderr instead of lines
};

struct WarmEntry {
  KernelInfo info;
  std::string error;  ///< empty on success; with the compiler's log
  std::string log;    ///< of NVRTC and ptxas
};

struct WarmReport {
  std::vector<WarmEntry> entries;
  std::size_t compiled = 0, hits = 0, failed = 0;
  double seconds = 0;
  std::string cache;        ///< folder
  std::string environment;  ///< what this machine lacks, when something failed for that; else empty
};

/// Throws Error(invalid_argument, invalid_policy) for archs and models that are none, Error(io_error) when the
/// cache folder cannot be used. A kernel that does not compile is an entry with an error.
WarmReport warm(const WarmOptions& options, const Env& env);

}  // namespace bdcp::autotune
