// Where toolkits and pip wheels keep NVIDIA's libraries, found without running python.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "device/dynamic_library.h"

namespace bdcp::device {
namespace {

namespace fs = std::filesystem;

// Subfolders whose name starts with `prefix`, newest version first.
std::vector<std::string> children(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with(prefix) && it->is_directory(ignored))
      found.push_back(it->path().string());
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

class Folders {
 public:
  void add(const std::string& folder) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) return;
    if (std::find(list_.begin(), list_.end(), folder) == list_.end()) list_.push_back(folder);
  }
  void add_toolkit(const std::string& root) {
    for (const char* sub : {"/lib64", "/lib", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib"})
      add(root + sub);
  }
  /// `packages` holds nvidia/<wheel>/lib.
  void add_wheels(const std::string& packages) {
    for (const std::string& wheel : children(packages + "/nvidia", "")) add(wheel + "/lib");
  }
  /// `lib` holds python3.x folders.
  void add_pythons(const std::string& lib) {
    for (const std::string& python : children(lib, "python3")) {
      add_wheels(python + "/site-packages");
      add_wheels(python + "/dist-packages");
    }
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

}  // namespace

std::vector<std::string> cuda_library_folders(const Env& env) {
  Folders folders;
  if (env.cuda_home) folders.add_toolkit(*env.cuda_home);
  folders.add_toolkit("/usr/local/cuda");
  for (const std::string& root : children("/usr/local", "cuda-")) folders.add_toolkit(root);
  // Python's own variables: they say where an active environment lies, and configure nothing in bdcp.
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* prefix = std::getenv(variable);
    if (!prefix || !*prefix) continue;
    folders.add_pythons(std::string(prefix) + "/lib");
    folders.add(std::string(prefix) + "/lib");
  }
  if (env.home) folders.add_pythons(*env.home + "/.local/lib");
  folders.add_pythons("/usr/local/lib");
  folders.add_pythons("/usr/lib");
  const std::string wheel_dir = BDCP_WHEEL_LIBRARY_DIR;
  if (!wheel_dir.empty()) {
    folders.add_wheels(wheel_dir);
    folders.add(wheel_dir);
  }
  return folders.take();
}

}  // namespace bdcp::device
