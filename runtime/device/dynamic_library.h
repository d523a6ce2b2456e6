// Opening libcuda, libnvrtc and libnccl at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/env.h"

namespace bdcp::device {

/// An opened shared library. Never closed: CUDA libraries do not survive dlclose.
class DynamicLibrary {
 public:
  /// Search order: already loaded in the process, `explicit_path`, the loader's own search, then `folders` (pip
  /// wheel and toolkit folders). Null with `why` filled (what was tried) when none opens. A given
  /// `explicit_path` that does not open ends the search: a wrong setting is never papered over.
  static std::shared_ptr<const DynamicLibrary> open(const std::vector<std::string>& names,
                                                    const std::string& explicit_path,
                                                    const std::vector<std::string>& folders, std::string* why);
  /// The file open() would take, without loading anything; the loader's search is followed through
  /// LD_LIBRARY_PATH and the loader's cache file. Empty with `why` filled when there is none.
  static std::string locate(const std::vector<std::string>& names, const std::string& explicit_path,
                            const std::vector<std::string>& folders, std::string* why);
  void* symbol(const char* name) const;  ///< null when missing
  const std::string& path() const { return path_; }

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

/// Folders that may hold NVIDIA's libraries and exist: $CUDA_HOME, /usr/local/cuda*, python
/// site-packages/nvidia/*/lib of the wheels, and the build tree's wheel folder compiled in by CMake (empty when
/// there is none).
std::vector<std::string> cuda_library_folders(const Env& env);

}  // namespace bdcp::device
