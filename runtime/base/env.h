// Every environment variable bdcp reads, in one struct, read once per Runtime.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bdcp {

struct Env {
  std::optional<std::string> policy;          ///< BDCP_POLICY: policy file
  std::optional<std::string> cache_dir;       ///< BDCP_CACHE_DIR: alias of kernels.cache_dir
  std::optional<std::string> allow_xnode;     ///< BDCP_ALLOW_XNODE: "1" sets exchange.cross_node = needed_only
  std::optional<std::string> log;             ///< BDCP_LOG: alias of log.level
  std::optional<std::string> set;             ///< BDCP_SET: field=value;field=value
  std::optional<std::string> libcuda;         ///< BDCP_LIBCUDA: explicit path of libcuda.so.1
  std::optional<std::string> libnvrtc;        ///< BDCP_LIBNVRTC: explicit path of libnvrtc
  std::optional<std::string> libnccl;         ///< BDCP_LIBNCCL: explicit path of libnccl
  std::optional<std::string> home;            ///< HOME
  std::optional<std::string> xdg_cache_home;  ///< XDG_CACHE_HOME
  std::optional<std::string> cuda_home;       ///< CUDA_HOME, else CUDA_PATH: toolkit folder to search

  static Env from_process();
  static Env from_pairs(const std::vector<std::pair<std::string, std::string>>& pairs);
};

}  // namespace bdcp
