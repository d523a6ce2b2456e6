// What the variables of torchrun, mpirun and srun mean.
#include "comm/launcher_env.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace bdcp {
namespace {

using comm::Launch;
using comm::read_launch;
using Variables = std::map<std::string, std::string>;

struct LaunchCase {
  const char* name;
  Variables variables;
  Launch want;
};

TEST(LauncherEnv, EveryLaunchersVariables) {
  const LaunchCase cases[] = {
      {"torchrun",
       {{"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "1"},
        {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "job7"},
        {"TORCHELASTIC_RESTART_COUNT", "2"}},
       {5, 8, 1, "job7", 2, "node0", 29500}},
      {"torchrun inside Slurm",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"SLURM_JOB_ID", "42"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "9"}},
       {0, 2, -1, "42", 0, "", 0}},
      {"Open MPI on one host",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
        {"PMIX_NAMESPACE", "prterun-1"}},
       {3, 4, 3, "prterun-1", 0, "localhost", 0}},
      {"Open MPI on several hosts",
       {{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
        {"OMPI_MCA_ess_base_jobid", "17"},
        {"MASTER_ADDR", "10.0.0.1"}},
       {3, 8, -1, "17", 0, "10.0.0.1", 0}},
      {"MPICH",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"PMI_JOBID", "k"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "2"}},
       {1, 2, 1, "k", 0, "localhost", 0}},
      {"srun",
       {{"SLURM_PROCID", "9"},
        {"SLURM_NTASKS", "16"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_ID", "42"},
        {"SLURM_STEP_ID", "3"},
        {"SLURM_RESTART_COUNT", "1"},
        {"SLURM_STEP_NODELIST", "gpu[007-008]"},
        {"SLURM_JOB_NODELIST", "gpu[001-008]"}},
       {9, 16, 1, "42.3", 1, "gpu007", 0}},
      {"srun with PMI",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "42"},
        {"SLURM_JOB_NODELIST", "a,b"}},
       {1, 2, 0, "42", 0, "a", 0}},
  };
  for (const LaunchCase& c : cases) {
    SCOPED_TRACE(c.name);
    const Launch got = read_launch(c.variables);
    EXPECT_EQ(got.rank, c.want.rank);
    EXPECT_EQ(got.world, c.want.world);
    EXPECT_EQ(got.local_rank, c.want.local_rank);
    EXPECT_EQ(got.run_id, c.want.run_id);
    EXPECT_EQ(got.restart, c.want.restart);
    EXPECT_EQ(got.master_host, c.want.master_host);
    EXPECT_EQ(got.master_port, c.want.master_port);
  }
}

TEST(LauncherEnv, WhatIsWrongIsNamed) {
  const auto refused = [](const Variables& variables, const std::vector<std::string>& words) {
    test::expect_error(ErrorCode::invalid_argument, words, [&] { read_launch(variables); });
  };
  refused({}, {"no launcher", "RANK", "SLURM_PROCID", "broadcast"});
  refused({{"RANK", "0"}}, {"RANK is set and WORLD_SIZE is not"});
  refused({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE is set and RANK is not"});
  refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK is \"2\"", "0 to 1"});
  refused({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK is \"-1\""});
  refused({{"RANK", "0x1"}, {"WORLD_SIZE", "2"}}, {"RANK is \"0x1\""});
  refused({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, {"WORLD_SIZE is \"99999999999\""});
  refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}},
          {"MASTER_PORT is \"70000\"", "65535"});
  refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RESTART_COUNT", "x"}},
          {"TORCHELASTIC_RESTART_COUNT is \"x\""});
}

TEST(LauncherEnv, TheLocalRankIsTheLaunchersOrZero) {
  EXPECT_EQ(comm::local_rank({}), 0);
  EXPECT_EQ(comm::local_rank({{"LOCAL_RANK", "3"}}), 0);  // nobody launched it
  EXPECT_EQ(comm::local_rank({{"RANK", "5"}, {"WORLD_SIZE", "8"}}), 0);
  EXPECT_EQ(comm::local_rank({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}), 1);
  EXPECT_EQ(comm::local_rank({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "2"}}), 2);
  EXPECT_TRUE(comm::launched({{"PMI_RANK", "0"}}));
  EXPECT_FALSE(comm::launched({{"SLURM_JOB_ID", "7"}}));
}

TEST(LauncherEnv, FirstHostOfASlurmList) {
  EXPECT_EQ(comm::first_slurm_host("node1"), "node1");
  EXPECT_EQ(comm::first_slurm_host("gpu[003-010,12],login1"), "gpu003");
  EXPECT_EQ(comm::first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(comm::first_slurm_host("r[1-2]n[30,31].cluster,x"), "r1n30.cluster");
  EXPECT_EQ(comm::first_slurm_host(""), "");
}

}  // namespace
}  // namespace bdcp
