// libnvrtc, found and identified without loading it, and opened when something must be compiled.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/embedded.h"
#include "base/env.h"
#include "device/dynamic_library.h"

namespace bdcp::jit {

/// Where libnvrtc lies and which build it is: build id of the library, "+" that of its builtins where they lie
/// beside it.
struct NvrtcFile {
  std::string path, build;
  bool found() const { return !path.empty(); }
};
/// Loads nothing. Not found: `why` is filled.
NvrtcFile locate_nvrtc(const Env& env, std::string* why);

/// Thread safe: distinct compiles may run at the same time.
class NvrtcLibrary {
 public:
  /// Null with `why` filled when the library does not open or lacks a function.
  static std::shared_ptr<const NvrtcLibrary> open(const std::string& path, std::string* why);
  ~NvrtcLibrary();

  int version() const { return version_; }                  ///< 1000 * major + 10 * minor
  const std::vector<int>& archs() const { return archs_; }  ///< 80 for sm_80; without suffixes
  const std::string& path() const;

  struct Outcome {
    std::string error;  ///< empty on success, else NVRTC's name for it
    std::string log;    ///< of the compiler and ptxas, also on success
    std::vector<char> cubin;
  };
  /// Compiles `unit`; includes resolve to `headers` alone.
  Outcome compile(const std::string& name, const std::string& unit, const std::vector<EmbeddedFile>& headers,
                  const std::vector<std::string>& options) const;

 private:
  struct Table;
  NvrtcLibrary();
  std::unique_ptr<Table> table_;
  int version_ = 0;
  std::vector<int> archs_;
};

}  // namespace bdcp::jit
