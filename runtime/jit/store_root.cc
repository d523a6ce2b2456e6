#include "jit/store_root.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace bdcp::jit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhatToSet =
    "kernels are kept in memory only; set kernels.cache_dir or BDCP_CACHE_DIR to a folder of your own";

std::string errno_text(int error) { return fmt::format("{} (errno {})", std::strerror(error), error); }

std::string why_open_to_others(const std::string& path, const struct stat& info) {
  if (info.st_mode & (S_IWGRP | S_IWOTH))
    return fmt::format("'{}' has mode {:04o}: other users could write to it; run chmod go-w on it", path,
                       static_cast<unsigned>(info.st_mode & 07777));
  return {};
}

std::string why_untrusted(const std::string& path, const struct stat& info) {
  if (!S_ISDIR(info.st_mode)) return fmt::format("'{}' is not a folder: {}", path, errno_text(ENOTDIR));
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return fmt::format("'{}' belongs to uid {}, not to uid {}", path, info.st_uid, geteuid());
  return why_open_to_others(path, info);
}

// For a folder that is not there yet: could it be made?
std::string why_not_creatable(const fs::path& folder) {
  fs::path ancestor = folder.parent_path();
  struct stat info;
  while (stat(ancestor.c_str(), &info) != 0) {
    if (errno != ENOENT || !ancestor.has_relative_path())
      return fmt::format("'{}' cannot be created: {}", folder.string(), errno_text(errno));
    ancestor = ancestor.parent_path();
  }
  if (!S_ISDIR(info.st_mode))
    return fmt::format("'{}' cannot be created: '{}': {}", folder.string(), ancestor.string(),
                       errno_text(ENOTDIR));
  if (access(ancestor.c_str(), W_OK | X_OK) != 0)
    return fmt::format("'{}' cannot be created in '{}': {}", folder.string(), ancestor.string(),
                       errno_text(errno));
  return {};
}

}  // namespace

StoreRoot choose_store_root(const std::optional<std::string>& wanted, const Env& env) {
  auto refuse = [](const std::string& why) {
    return StoreRoot{{}, fmt::format("kernel cache: {}; {}", why, kWhatToSet)};
  };
  std::string path;
  if (wanted) {
    if (wanted->empty()) return {};
    path = *wanted;
  } else if (env.cache_dir) {
    path = *env.cache_dir;
  } else if (env.xdg_cache_home) {
    path = *env.xdg_cache_home + "/bdcp";
  } else if (env.home) {
    path = *env.home + "/.cache/bdcp";
  } else {
    return refuse("neither BDCP_CACHE_DIR, XDG_CACHE_HOME nor HOME is set");
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error) return refuse(fmt::format("'{}': {}", path, error.message()));
  path = absolute.string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();

  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (std::string why = why_untrusted(path, info); !why.empty()) return refuse(why);
  } else if (errno == ENOENT) {
    if (std::string why = why_not_creatable(path); !why.empty()) return refuse(why);
  } else {
    return refuse(fmt::format("'{}': {}", path, errno_text(errno)));
  }
  return {path, {}};
}

std::string why_not_seed(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    return fmt::format("seed folder '{}' is not used: {}", path, errno_text(errno));
  if (!S_ISDIR(info.st_mode)) return fmt::format("seed folder '{}' is not used: {}", path, errno_text(ENOTDIR));
  const std::string why = why_open_to_others(path, info);
  return why.empty() ? why : "seed folder is not used: " + why;
}

}  // namespace bdcp::jit
