#include "base/env.h"

#include <cstdlib>
#include <functional>

namespace bdcp {
namespace {

Env read(const std::function<std::optional<std::string>(const char*)>& get) {
  Env env;
  env.policy = get("BDCP_POLICY");
  env.cache_dir = get("BDCP_CACHE_DIR");
  env.allow_xnode = get("BDCP_ALLOW_XNODE");
  env.log = get("BDCP_LOG");
  env.set = get("BDCP_SET");
  env.libcuda = get("BDCP_LIBCUDA");
  env.libnvrtc = get("BDCP_LIBNVRTC");
  env.libnccl = get("BDCP_LIBNCCL");
  env.home = get("HOME");
  env.xdg_cache_home = get("XDG_CACHE_HOME");
  env.cuda_home = get("CUDA_HOME");
  if (!env.cuda_home) env.cuda_home = get("CUDA_PATH");
  return env;
}

}  // namespace

Env Env::from_process() {
  return read([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return value;
  });
}

Env Env::from_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return read([&](const char* name) -> std::optional<std::string> {
    for (const auto& [key, value] : pairs)
      if (key == name && !value.empty()) return value;
    return std::nullopt;
  });
}

}  // namespace bdcp
