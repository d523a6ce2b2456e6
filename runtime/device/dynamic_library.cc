#include "device/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace bdcp::device {
namespace {

namespace fs = std::filesystem;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string path_of(void* handle, const std::string& fallback) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name) return map->l_name;
  return fallback;
}

std::string last_dl_error() {
  const char* text = dlerror();
  return text ? text : "unknown error";
}

// A failed search must say everything that was tried.
std::string not_found(const std::vector<std::string>& names, const std::string& detail,
                      const std::vector<std::string>& folders) {
  return fmt::format("none of {} found: not loaded in this process; loader: {}; folders: {}",
                     fmt::join(names, ", "), detail.empty() ? "no match" : detail,
                     folders.empty() ? std::string("none") : fmt::format("{}", fmt::join(folders, ", ")));
}

// LD_LIBRARY_PATH belongs to the loader, not to bdcp's settings, so it is not part of Env.
std::string in_library_path(const std::string& name) {
  const char* value = std::getenv("LD_LIBRARY_PATH");
  std::string_view rest = value ? value : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string_view folder = rest.substr(0, end);
    if (!folder.empty()) {
      std::string path = fmt::format("{}/{}", folder, name);
      if (is_file(path)) return path;
    }
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return {};
}

// Every format of ld.so.cache stores full paths as NUL-terminated strings, so no header needs parsing.
std::string in_loader_cache(const std::string& cache, const std::string& name) {
  const std::string tail = "/" + name + '\0';
  for (std::size_t at = cache.find(tail); at != std::string::npos; at = cache.find(tail, at + 1)) {
    const std::size_t begin = cache.rfind('\0', at) + 1;
    std::string path = cache.substr(begin, at - begin + tail.size() - 1);
    // 32-bit twins share the cache; their folders are named after their ABI.
    if (path.find("/lib32/") == std::string::npos && path.find("i386") == std::string::npos && is_file(path))
      return path;
  }
  return {};
}

std::string read_loader_cache() {
  std::ifstream file("/etc/ld.so.cache", std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();  // an iterator would throw what the file buffer throws
  return bytes.str();
}

}  // namespace

std::shared_ptr<const DynamicLibrary> DynamicLibrary::open(const std::vector<std::string>& names,
                                                           const std::string& explicit_path,
                                                           const std::vector<std::string>& folders,
                                                           std::string* why) {
  auto result = [](void* handle, const std::string& name) {
    return std::shared_ptr<const DynamicLibrary>(new DynamicLibrary(handle, path_of(handle, name)));
  };
  for (const std::string& name : names)
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return result(handle, name);
  if (!explicit_path.empty()) {
    if (void* handle = dlopen(explicit_path.c_str(), RTLD_NOW | RTLD_LOCAL))
      return result(handle, explicit_path);
    if (why) *why = fmt::format("'{}' (set explicitly) does not open: {}", explicit_path, last_dl_error());
    return nullptr;
  }
  std::string detail;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return result(handle, name);
    if (detail.empty()) detail = last_dl_error();
  }
  for (const std::string& folder : folders) {
    for (const std::string& name : names) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (!is_file(path)) continue;
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return result(handle, path);
      detail = last_dl_error();
    }
  }
  if (why) *why = not_found(names, detail, folders);
  return nullptr;
}

std::string DynamicLibrary::locate(const std::vector<std::string>& names, const std::string& explicit_path,
                                   const std::vector<std::string>& folders, std::string* why) {
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
      std::string path = path_of(handle, name);
      dlclose(handle);  // only gives back the reference NOLOAD took
      return path;
    }
  }
  if (!explicit_path.empty()) {
    if (is_file(explicit_path)) return explicit_path;
    if (why) *why = fmt::format("'{}' (set explicitly) is not a file", explicit_path);
    return {};
  }
  const std::string cache = read_loader_cache();
  for (const std::string& name : names) {
    if (std::string path = in_library_path(name); !path.empty()) return path;
    if (std::string path = in_loader_cache(cache, name); !path.empty()) return path;
    for (const char* folder : {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
                               "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}) {
      std::string path = fmt::format("{}/{}", folder, name);
      if (is_file(path)) return path;
    }
  }
  for (const std::string& folder : folders)
    for (const std::string& name : names)
      if (std::string path = fmt::format("{}/{}", folder, name); is_file(path)) return path;
  if (why) *why = not_found(names, "", folders);
  return {};
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace bdcp::device
