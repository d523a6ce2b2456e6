// Ranks as processes with a GPU each: every drill of a failing, late or disagreeing rank, over NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "comm/socket.h"
#include "step/drills.h"
#include "step/nccl_world.h"

namespace bdcp::test {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class NcclDrills : public TwoGpus {
 protected:
  static std::vector<std::string> on_gpus(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"do=steps", "on=gpu"});
    return command(arguments);
  }
  /// Where this test's own libraries are, for its children.
  static std::vector<std::string> libraries() {
    std::vector<std::string> variables;
    for (const char* name : {"BDCP_LIBNCCL", "BDCP_LIBNVRTC", "BDCP_LIBCUDA", "BDCP_CACHE_DIR"})
      if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
    return variables;
  }
  struct GpuJob : Job {
    explicit GpuJob(const std::vector<std::string>& arguments) : Job(2, on_gpus(arguments), {}, libraries()) {}
  };
  /// Seconds from now until `rank` has said what failed.
  static double until_error(Job& job, int rank) {
    const auto start = Clock::now();
    EXPECT_TRUE(job.wait_for(rank, "error ")) << job.all_text();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

TEST_F(NcclDrills, WellBehavedRanksEnd) {
  for (const char* path : {"\"allgather\"", "\"halo\"", "\"a2a\""}) {
    GpuJob job({"steps=3", std::string("exchange.path=") + path});
    job.finish();
    EXPECT_TRUE(job.all_exited_well()) << job.all_text();
    EXPECT_THAT(job[0].text, HasSubstr("end\n")) << job.all_text();
  }
}

TEST_F(NcclDrills, AKilledRankIsNamedBeforeInAndAfterTheExchange) {
  for (const char* how : {"die_before", "die_in_step", "die_after"}) {
    SCOPED_TRACE(how);
    GpuJob job({"odd=1", std::string("how=") + how});
    ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), kMore);
    expect_error(job, {0}, "peer_failed", 1, {"rank 1 failed", "process has ended", "seen by rank"});
    EXPECT_LT(job.finish({0}), 8);  // NCCL gives its memory back
  }
}

TEST_F(NcclDrills, AStoppedProcessIsNamedAfterFiveHeartbeats) {
  for (const char* how : {"stop_before", "stop_in_step"}) {
    SCOPED_TRACE(how);
    GpuJob job({"odd=1", std::string("how=") + how, "agreement.heartbeat_s=0.4"});
    ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), 5 * 0.4 + kMore);
    expect_error(job, {0}, "peer_failed", 1, {"rank 1 failed", "silent for 5 heartbeats"});
  }
}

TEST_F(NcclDrills, ASkippedBeginStepIsNamedAfterTheAgreementsBound) {
  GpuJob job({"odd=1", "how=skip_step", "agreement.timeout_s=2"});
  ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), 2 + kMore);
  expect_error(job, {0}, "timeout", 1, {"rank 1 did not come to the agreement"});
}

TEST_F(NcclDrills, ASkippedForwardIsADivergenceAtOnce) {
  GpuJob job({"odd=1", "how=skip_forward", "sync=no"});
  ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), kMore);
  job.finish();
  for (const int rank : {0, 1}) EXPECT_THAT(job[rank].text, HasSubstr("error divergence")) << job.all_text();
}

TEST_F(NcclDrills, ASkippedForwardThatIsWaitedForIsNamedAfterTheBound) {
  // Rank 0 waits for its stream, rank 1 for rank 0 in begin_step.
  GpuJob job({"odd=1", "how=skip_forward", "agreement.timeout_s=2"});
  ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), 2 + kMore);
  job.finish();
  for (const int rank : {0, 1}) EXPECT_THAT(job[rank].text, HasSubstr("error timeout")) << job.all_text();
}

TEST_F(NcclDrills, ARankThatSitsOutAnExchangeIsNamedAfterItsBound) {
  GpuJob job({"odd=1", "how=sit_out", "agreement.timeout_s=2"});
  ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), 2 + kMore);
  expect_error(job, {0}, "timeout", 1, {"rank 1 did not start transfer"});
}

TEST_F(NcclDrills, AbortsFailedCallsAndFullMemoryReachEveryRank) {
  struct Case {
    const char *how, *code, *words;
  };
  for (const Case& c :
       {Case{"abort", "peer_failed", "aborted: told to"}, Case{"out_of_memory", "peer_failed", "out_of_memory"},
        Case{"bad_call", "invalid_argument", "forward: no prepared shape"}}) {
    SCOPED_TRACE(c.how);
    GpuJob job({"odd=1", std::string("how=") + c.how});
    ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), kMore);
    job.finish();
    EXPECT_TRUE(job.all_exited_well()) << job.all_text();
    expect_error(job, {0}, "peer_failed", 1, {"rank 1 failed with", c.words});
    expect_error(job, {1}, c.code, 1, {c.words});
  }
}

TEST_F(NcclDrills, ARankThatLeavesIsNamed) {
  GpuJob job({"odd=1", "how=leave"});
  ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), kMore);
  expect_error(job, {0}, "peer_failed", 1, {"it left the group"});
}

TEST_F(NcclDrills, ALateRankAndASlowKernelAreWaitedFor) {
  for (const char* how : {"late", "slow"}) {
    SCOPED_TRACE(how);
    GpuJob job({"odd=1", std::string("how=") + how, "late_s=3", "steps=4", "failure.exchange_timeout_s=1"});
    job.finish();
    EXPECT_TRUE(job.all_exited_well()) << job.all_text();
    EXPECT_THAT(job[0].text, HasSubstr("end\n")) << job.all_text();
  }
}

TEST_F(NcclDrills, SurvivorsFormANewCommunicatorAndGoOn) {
  GpuJob job({"odd=1", "how=abort", "reform=01"});
  job.finish();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(job[rank].text, HasSubstr("reformed as rank " + std::to_string(rank) + " of 2"))
        << job.all_text();
}

TEST_F(NcclDrills, AMissingLibraryIsNamedOnEveryRank) {
  std::vector<std::string> variables = libraries();
  std::erase_if(variables, [](const std::string& one) { return one.starts_with("BDCP_LIBNCCL="); });
  variables.emplace_back("BDCP_LIBNCCL=/nonexistent/libnccl.so.2");
  Job job(2, on_gpus({"steps=1"}), {}, variables);
  job.finish();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(job[rank].text, HasSubstr("/nonexistent/libnccl.so.2")) << job.all_text();
}

}  // namespace
}  // namespace bdcp::test
