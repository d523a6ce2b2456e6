#include "base/env.h"

#include <cstdlib>
#include <functional>
#include <utility>

namespace bdcp {
namespace {

constexpr const char* kLauncherVariables[] = {"RANK",
                                              "WORLD_SIZE",
                                              "LOCAL_RANK",
                                              "MASTER_ADDR",
                                              "MASTER_PORT",  // torchrun and its like
                                              "TORCHELASTIC_RUN_ID",
                                              "TORCHELASTIC_RESTART_COUNT",  //
                                              "OMPI_COMM_WORLD_RANK",
                                              "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_RANK",  // mpirun of Open MPI
                                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                                              "OMPI_MCA_ess_base_jobid",
                                              "PMIX_NAMESPACE",  //
                                              "PMI_RANK",
                                              "PMI_SIZE",
                                              "PMI_JOBID",
                                              "MPI_LOCALRANKID",
                                              "MPI_LOCALNRANKS",  // mpirun of MPICH's kin
                                              "SLURM_PROCID",
                                              "SLURM_NTASKS",
                                              "SLURM_LOCALID",
                                              "SLURM_JOB_ID",  // srun
                                              "SLURM_STEP_ID",
                                              "SLURM_RESTART_COUNT",
                                              "SLURM_STEP_NODELIST",
                                              "SLURM_JOB_NODELIST"};

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
  env.rendezvous = get("BDCP_RENDEZVOUS");
  env.secret = get("BDCP_SECRET");
  env.host_interface = get("BDCP_HOST_INTERFACE");
  for (const char* name : kLauncherVariables)
    if (auto value = get(name)) env.launcher.emplace(name, std::move(*value));
  env.launch_order = get("NCCL_LAUNCH_ORDER_IMPLICIT");
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
