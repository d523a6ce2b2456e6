// Every environment variable bdcp reads, in one struct, read once per Runtime.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bdcp {

struct Env {
  std::optional<std::string> policy;       ///< BDCP_POLICY: policy file
  std::optional<std::string> cache_dir;    ///< BDCP_CACHE_DIR: alias of kernels.cache_dir
  std::optional<std::string> allow_xnode;  ///< BDCP_ALLOW_XNODE: "1" sets exchange.cross_node = needed_only
  std::optional<std::string> log;          ///< BDCP_LOG: alias of log.level
  std::optional<std::string> set;          ///< BDCP_SET: field=value;field=value
  std::optional<std::string> libcuda;      ///< BDCP_LIBCUDA: explicit path of libcuda.so.1
  std::optional<std::string> libnvrtc;     ///< BDCP_LIBNVRTC: explicit path of libnvrtc
  std::optional<std::string> libnccl;      ///< BDCP_LIBNCCL: explicit path of libnccl
  std::optional<std::string> rendezvous;   ///< BDCP_RENDEZVOUS: host or host:port where processes meet
  std::optional<std::string> secret;       ///< BDCP_SECRET: the job's secret, equal on all its processes
  std::optional<std::string>
      host_interface;                       ///< BDCP_HOST_INTERFACE: network interface or address to listen on
  std::optional<std::string> launch_order;  ///< NCCL_LAUNCH_ORDER_IMPLICIT, which is NCCL's: only to warn
  std::optional<std::string> home;          ///< HOME
  std::optional<std::string> xdg_cache_home;  ///< XDG_CACHE_HOME
  std::optional<std::string> cuda_home;       ///< CUDA_HOME, else CUDA_PATH: toolkit folder to search
  /// What torchrun, mpirun and srun say about this process, by variable name (comm/launcher_env.h reads them).
  std::map<std::string, std::string> launcher;

  static Env from_process();
  static Env from_pairs(const std::vector<std::pair<std::string, std::string>>& pairs);
};

}  // namespace bdcp
