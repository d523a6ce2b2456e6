// Ranks as processes over the tests' libcuda and libnccl: what is agreed on, and who is named, does not depend
// on what a GPU does. Kernels are compiled, but never run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/env.h"
#include "jit/kernel_cache.h"
#include "step/drills.h"

namespace bdcp::test {
namespace {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class FakeNcclDrills : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = jit::KernelCache({}, Env::from_process(), nullptr).why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  struct FakeJob : Job {
    FakeJob(std::vector<std::string> arguments, const std::function<std::vector<std::string>(int)>& extra = {})
        : Job(2, whole(std::move(arguments)), extra, variables()) {}
    static std::vector<std::string> whole(std::vector<std::string> arguments) {
      arguments.insert(arguments.begin(), {"do=steps", "on=gpu"});
      return command(arguments);
    }
    static std::vector<std::string> variables() {
      std::vector<std::string> all{"BDCP_LIBCUDA=" BDCP_FAKE_LIBCUDA, "BDCP_LIBNCCL=" BDCP_FAKE_LIBNCCL,
                                   "BDCP_CACHE_DIR=" BDCP_BINARY_DIR "/test-kernel-cache"};
      if (const auto nvrtc = Env::from_process().libnvrtc) all.push_back("BDCP_LIBNVRTC=" + *nvrtc);
      return all;
    }
  };
  /// Nobody waits for the other in a layer here: it is the odd rank whose steps are counted.
  static double until_error(Job& job, int rank) {
    const auto start = Clock::now();
    EXPECT_TRUE(job.wait_for(rank, "error ")) << job.all_text();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

TEST_F(FakeNcclDrills, WellBehavedRanksEnd) {
  for (const char* path : {"\"allgather\"", "\"halo\"", "\"a2a\""}) {
    FakeJob job({"steps=3", std::string("exchange.path=") + path});
    job.finish();
    EXPECT_TRUE(job.all_exited_well()) << job.all_text();
    EXPECT_THAT(job[0].text, HasSubstr("end\n")) << job.all_text();
    // Nothing told NCCL to keep the order of several communicators.
    EXPECT_THAT(job[0].text, HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT is not 1")) << job.all_text();
    EXPECT_THAT(job[1].text, testing::Not(HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT")));
  }
}

TEST_F(FakeNcclDrills, DifferencesAreDivergencesOnBothRanksAtOnce) {
  struct Case {
    const char *how, *words;
  };
  for (const Case& c :
       {Case{"other_layout", "layout: "}, Case{"other_policy", "policy/exchange/grad_payload: "},
        Case{"skip_forward", "calls"}}) {
    SCOPED_TRACE(c.how);
    FakeJob job({"odd=1", std::string("how=") + c.how, "sync=no"});
    ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), kMore);
    job.finish();
    for (const int rank : {0, 1})
      EXPECT_THAT(job[rank].text, testing::AllOf(HasSubstr("error divergence"), HasSubstr(c.words)))
          << job.all_text();
  }
}

TEST_F(FakeNcclDrills, LibrariesOfDifferentVersionsAreADivergence) {
  FakeJob job({"steps=3"}, [](int rank) {
    return rank == 1 ? std::vector<std::string>{"nccl=22703"} : std::vector<std::string>{};
  });
  job.finish();
  for (const int rank : {0, 1})
    EXPECT_THAT(
        job[rank].text,
        HasSubstr("error divergence origin -1 scope step: ranks disagree about the transport: rank 0 has "
                  "\"nccl 2.28.9\", rank 1 has \"nccl 2.27.3\""))
        << job.all_text();
}

TEST_F(FakeNcclDrills, OlderLibrariesAreRefusedOnBothRanks) {
  FakeJob job({"steps=3"}, [](int rank) {
    return rank == 1 ? std::vector<std::string>{"nccl=22500"} : std::vector<std::string>{};
  });
  job.finish();
  for (const int rank : {0, 1})
    EXPECT_THAT(job[rank].text, testing::AllOf(HasSubstr("rank 1: "), HasSubstr("NCCL 2.25.0 at "),
                                               HasSubstr("is too old; 2.26.0 or newer is needed")))
        << job.all_text();
}

TEST_F(FakeNcclDrills, DeadStoppedAndLeavingRanksAreNamed) {
  for (const char* how : {"die_before", "die_in_step", "die_after"}) {
    SCOPED_TRACE(how);
    FakeJob job({"odd=1", std::string("how=") + how});
    ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), kMore);
    expect_error(job, {0}, "peer_failed", 1, {"rank 1 failed", "process has ended", "seen by rank"});
  }
  FakeJob stopped({"odd=1", "how=stop_before", "agreement.heartbeat_s=0.4"});
  ASSERT_TRUE(stopped.wait_for(1, "step 1")) << stopped.all_text();
  EXPECT_LT(until_error(stopped, 0), 5 * 0.4 + kMore);
  expect_error(stopped, {0}, "peer_failed", 1, {"rank 1 failed", "silent for 5 heartbeats"});
  FakeJob leaving({"odd=1", "how=leave"});
  ASSERT_TRUE(leaving.wait_for(1, "step 1")) << leaving.all_text();
  EXPECT_LT(until_error(leaving, 0), kMore);
  expect_error(leaving, {0}, "peer_failed", 1, {"it left the group"});
}

TEST_F(FakeNcclDrills, ASkippedBeginStepIsNamedAfterTheAgreementsBound) {
  FakeJob job({"odd=1", "how=skip_step", "agreement.timeout_s=1"});
  ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
  EXPECT_LT(until_error(job, 0), 1 + kMore);
  expect_error(job, {0}, "timeout", 1, {"rank 1 did not come to the agreement"});
}

TEST_F(FakeNcclDrills, AbortsAndFailedCallsReachTheOtherRank) {
  struct Case {
    const char *how, *code, *words;
  };
  for (const Case& c : {Case{"abort", "peer_failed", "aborted: told to"},
                        Case{"bad_call", "invalid_argument", "forward: no prepared shape"}}) {
    SCOPED_TRACE(c.how);
    FakeJob job({"odd=1", std::string("how=") + c.how});
    ASSERT_TRUE(job.wait_for(1, "step 1")) << job.all_text();
    EXPECT_LT(until_error(job, 0), kMore);
    job.finish();
    expect_error(job, {0}, "peer_failed", 1, {"rank 1 failed with", c.words});
    expect_error(job, {1}, c.code, 1, {c.words});
  }
}

TEST_F(FakeNcclDrills, SurvivorsFormANewCommunicatorAndGoOn) {
  FakeJob job({"odd=1", "how=abort", "reform=01"});
  job.finish();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(job[rank].text, HasSubstr("reformed as rank " + std::to_string(rank) + " of 2"))
        << job.all_text();
}

}  // namespace
}  // namespace bdcp::test
