// KernelCache: spec -> cubin (memory, disk, seed folders, NVRTC) -> loaded kernel per device. Thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "bdcp/policy.h"
#include "device/device.h"
#include "jit/kernel_spec.h"
#include "jit/source_set.h"

namespace bdcp::jit {

struct CompiledKernel {
  KernelSpec spec;
  std::string key;       ///< 32 hex digits: content key of everything that changes the bytes
  std::string key_text;  ///< what was hashed
  std::shared_ptr<const std::vector<char>> cubin;  ///< never null
  int registers = 0, spill_bytes = 0;
  int smem_bytes = 0;     ///< of a block: static plus spec.dynamic_smem
  double compile_ms = 0;  ///< of the compile that made it, also on hits
  std::string log;        ///< NVRTC and ptxas output (advisories included), also on hits
  std::string nvrtc_build;
  enum class Origin { memory, disk, seed, compiled } origin = Origin::compiled;
};

struct CacheStats {
  std::uint64_t memory_hits = 0, disk_hits = 0, seed_hits = 0, misses = 0, compiled = 0, failed = 0,
                corrupt = 0, publish_failures = 0;
};

struct CacheOptions {
  std::optional<std::string> cache_dir;  ///< null: $XDG_CACHE_HOME/bdcp or $HOME/.cache/bdcp; "" : memory only
  std::vector<std::string> seed_dirs;
  PolicyValues::OnMiss on_miss = PolicyValues::OnMiss::jit;
  int jobs = 0;  ///< compiles at the same time; 0: number of cores
  /// Called before, every heartbeat_s during, and after each compile; any thread.
  std::function<void(const std::string& text)> on_compile;
  double heartbeat_s = 10;
};

class KernelCache {
 public:
  /// `sources`: the templates; they must outlive the cache. `log` may be null.
  KernelCache(CacheOptions options, const Env& env, std::shared_ptr<const Log> log,
              SourceSet sources = embedded_sources());
  ~KernelCache();

  /// Single flight per key. Throws Error(compile_failed) with NVRTC's log, also where on_miss forbids
  /// compiling; Error(unsupported) for an arch NVRTC does not know; Error(library_missing). A failure is not
  /// cached: the next call tries again. Without NVRTC, entries made by any NVRTC build are taken.
  std::shared_ptr<const CompiledKernel> get(const KernelSpec& spec);
  /// get() plus load, once per spec and device. An entry from disk that the driver refuses is taken out and
  /// compiled again.
  std::shared_ptr<const device::LoadedKernel> load(const KernelSpec& spec,
                                                   const std::shared_ptr<device::Device>& device);
  /// Compiles many in parallel; a failed entry is reported in `errors` (by index, empty on success), not
  /// thrown.
  std::vector<std::shared_ptr<const CompiledKernel>> get_all(
      const std::vector<KernelSpec>& specs, std::vector<std::string>* errors,
      const std::function<void(std::size_t done)>& progress = {});
  CacheStats stats() const;
  const std::string& directory() const;  ///< empty: memory only
  /// Archs NVRTC reports, as "sm_XY"; throws Error(library_missing).
  std::vector<std::string> supported_archs() const;
  /// Empty, or why nothing can be compiled on this machine.
  std::string why_no_compiler() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bdcp::jit
