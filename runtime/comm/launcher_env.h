// What a launcher (torchrun, mpirun, srun) tells a process about its job. Pure: variables in, facts out.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace bdcp::comm {

struct Launch {
  int rank = 0, world = 1;
  int local_rank = -1;      ///< -1: not told
  std::string run_id;       ///< the job, "default" where the launcher has no name for it
  int restart = 0;          ///< how often the launcher has restarted the job
  std::string master_host;  ///< where the process of rank 0 runs; empty: not told
  int master_port = 0;      ///< the launcher's own port, which tells jobs of one name apart; 0: not told
};

/// RANK and WORLD_SIZE come first (torchrun, and whoever wraps another launcher), then Open MPI's, PMI's and
/// Slurm's variables. Throws Error(invalid_argument) naming the variable, its value and what is allowed; also
/// if none of the launchers left its mark.
Launch read_launch(const std::map<std::string, std::string>& variables);

/// Whether a launcher has left its mark.
bool launched(const std::map<std::string, std::string>& variables);
/// This process's number on its host; 0 without a launcher, or with one that does not tell. Throws as
/// read_launch for variables that make no sense.
int local_rank(const std::map<std::string, std::string>& variables);

/// "gpu[003-010,12],login1" -> "gpu003".
std::string first_slurm_host(std::string_view node_list);

}  // namespace bdcp::comm
