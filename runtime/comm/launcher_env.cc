#include "comm/launcher_env.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "bdcp/error.h"

namespace bdcp::comm {
namespace {

using Variables = std::map<std::string, std::string>;

const std::string* find(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is \"{}\"; allowed are whole numbers from {} to {}", name, text.substr(0, 40),
                            least, most));
  return value;
}

constexpr int kMost = std::numeric_limits<int>::max();

int number_or(const Variables& variables, const char* name, int otherwise, int least, int most) {
  const std::string* text = find(variables, name);
  return text ? number(name, *text, least, most) : otherwise;
}

std::string text_or(const Variables& variables, std::initializer_list<const char*> names,
                    const std::string& otherwise) {
  for (const char* name : names)
    if (const std::string* text = find(variables, name)) return *text;
  return otherwise;
}

/// Rank and size come together; the size bounds the rank.
bool read_place(const Variables& variables, const char* rank_name, const char* size_name, Launch& launch) {
  const std::string* rank = find(variables, rank_name);
  const std::string* size = find(variables, size_name);
  if (!rank && !size) return false;
  if (!rank || !size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is set and {} is not; a launcher sets both", rank ? rank_name : size_name,
                            rank ? size_name : rank_name));
  launch.world = number(size_name, *size, 1, kMost);
  launch.rank = number(rank_name, *rank, 0, launch.world - 1);
  return true;
}

std::string slurm_run(const Variables& variables) {
  const std::string job = text_or(variables, {"SLURM_JOB_ID"}, "default");
  const std::string* step = find(variables, "SLURM_STEP_ID");
  return step ? job + "." + *step : job;
}

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  bool skipping = false, inside = false;
  for (const char c : list) {
    if (c == ']') {
      inside = skipping = false;
    } else if (c == '[') {
      inside = true;
    } else if (inside) {
      skipping = skipping || c == ',' || c == '-';
      if (!skipping) host += c;
    } else if (c == ',') {
      break;
    } else {
      host += c;
    }
  }
  return host;
}

Launch read_launch(const Variables& variables) {
  Launch launch;
  launch.master_host = text_or(variables, {"MASTER_ADDR"}, "");
  launch.master_port = number_or(variables, "MASTER_PORT", 0, 0, 65535);
  launch.restart = number_or(variables, "TORCHELASTIC_RESTART_COUNT", 0, 0, kMost);
  launch.run_id = text_or(variables, {"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}, "default");
  if (read_place(variables, "RANK", "WORLD_SIZE", launch)) {
    launch.local_rank = number_or(variables, "LOCAL_RANK", -1, 0, kMost);
    return launch;
  }
  if (read_place(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch)) {
    launch.local_rank = number_or(variables, "OMPI_COMM_WORLD_LOCAL_RANK", -1, 0, kMost);
    launch.run_id = text_or(variables, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, launch.run_id);
    if (launch.master_host.empty() &&
        number_or(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", -1, 1, kMost) == launch.world)
      launch.master_host = "localhost";
    return launch;
  }
  const bool pmi = read_place(variables, "PMI_RANK", "PMI_SIZE", launch);
  if (!pmi && !read_place(variables, "SLURM_PROCID", "SLURM_NTASKS", launch))
    throw Error(
        ErrorCode::invalid_argument,
        "no launcher is recognised: none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID is set; "
        "start the processes with torchrun, mpirun or srun, or create the communicator from a broadcast");
  // srun may offer PMI as well: what only Slurm knows comes from Slurm's variables.
  launch.run_id =
      find(variables, "SLURM_JOB_ID") ? slurm_run(variables) : text_or(variables, {"PMI_JOBID"}, launch.run_id);
  launch.restart = number_or(variables, "SLURM_RESTART_COUNT", launch.restart, 0, kMost);
  launch.local_rank =
      number_or(variables, "SLURM_LOCALID", number_or(variables, "MPI_LOCALRANKID", -1, 0, kMost), 0, kMost);
  if (launch.master_host.empty())
    launch.master_host =
        first_slurm_host(text_or(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}, ""));
  if (launch.master_host.empty() && number_or(variables, "MPI_LOCALNRANKS", -1, 1, kMost) == launch.world)
    launch.master_host = "localhost";
  return launch;
}

bool launched(const Variables& variables) {
  const auto marks = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  return std::any_of(marks.begin(), marks.end(), [&](const char* name) { return find(variables, name); });
}

int local_rank(const Variables& variables) {
  return launched(variables) ? std::max(read_launch(variables).local_rank, 0) : 0;
}

}  // namespace bdcp::comm
