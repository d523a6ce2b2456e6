// Ranks as processes: results, and every drill of a failing, late or disagreeing rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <thread>

#include "check/oracle.h"
#include "comm/socket.h"
#include "step/drills.h"
#include "step/rank_cases.h"
#include "support/numbers.h"

namespace bdcp::test {
namespace {

using testing::HasSubstr;
using testing::Not;
struct Folder {
  std::string path =
      (std::filesystem::temp_directory_path() / ("bdcp_processes_" + std::to_string(getpid()))).string();
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

TEST(Processes, ResultsAreTheOraclesAndThoseOfThreadsBitForBit) {
  const Folder folder;
  for (const int world : {2, 3}) {
    Job job(world, command({"do=parity", "out=" + folder.path}));
    job.finish();
    ASSERT_TRUE(job.all_exited_well()) << job.all_text();
    const DocLayout layout = parity_layout(world);
    const GlobalInputs inputs(layout, kParityShape, kParitySeed);
    const check::Results want =
        check::oracle(check::Problem::from(kParityShape, layout),
                      {inputs.q.view(), inputs.k.view(), inputs.v.view(), inputs.dout.view()});
    for (const char* path : kPaths) {
      EXPECT_THAT(job[0].text, HasSubstr(std::string("path ") + path)) << job.all_text();
      const std::string policy =
          "{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"" + std::string(path) + "\"}}";
      const Runtime runtime = quiet_runtime(policy);
      std::vector<std::string> errors = on_ranks(world, [&](int rank, Communicator comm) {
        const Step step = runtime.begin_step(layout, kParityShape, comm, {.device = StepOptions::device_host});
        RankRun run(step, kParityShape, inputs, rank);
        run.forward(step);
        run.backward(step);
        std::ifstream file(folder.path + "/" + path + "." + std::to_string(rank), std::ios::binary);
        const std::string got{std::istreambuf_iterator<char>(file), {}};
        std::string expected;
        each_result(run, [&](char* bytes, std::size_t count) { expected.append(bytes, count); });
        EXPECT_TRUE(got == expected) << path << ", rank " << rank << ": " << got.size() << " bytes";
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      const GlobalResults threads = run_world(layout, kParityShape, inputs, {.policy = policy});
      EXPECT_TRUE(numbers_pass(check::Quantity::out, DType::f32, threads.out.values(), want.out));
      EXPECT_TRUE(numbers_pass(check::Quantity::lse, DType::f32, threads.lse.values(), want.lse));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, threads.dq.values(), want.dq));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, threads.dk.values(), want.dk));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, threads.dv.values(), want.dv));
    }
  }
}

TEST(Processes, NodesThatHostsOrThePolicyTellFallBackToAllgatherUnlessAllowed) {
  struct Case {
    const char* nodes;
    std::vector<std::string> variables;
    bool allowed;
  };
  const DocLayout layout = parity_layout(2);
  const GlobalInputs inputs(layout, kParityShape, kParitySeed);
  const check::Results want =
      check::oracle(check::Problem::from(kParityShape, layout),
                    {inputs.q.view(), inputs.k.view(), inputs.v.view(), inputs.dout.view()});
  for (const Case& c :
       {Case{"exchange.ranks_per_node=1", {}, false}, Case{"hosts=apart", {}, false},
        Case{"exchange.ranks_per_node=1", {"BDCP_ALLOW_XNODE=1"}, true},
        Case{"hosts=apart", {"BDCP_ALLOW_XNODE=1"}, true}, Case{"hosts=apart", {"BDCP_ALLOW_XNODE=0"}, false},
        Case{"exchange.ranks_per_node=2", {}, true}}) {
    SCOPED_TRACE(std::string(c.nodes) + (c.variables.empty() ? "" : " " + c.variables[0]));
    const Folder folder;
    Job job(2, command({"do=parity", "env=yes", c.nodes, "out=" + folder.path}), {}, c.variables);
    job.finish();
    ASSERT_TRUE(job.all_exited_well()) << job.all_text();
    for (const int rank : {0, 1}) {
      EXPECT_THAT(job[rank].text,
                  HasSubstr(c.allowed ? "path allgather\npath halo\npath a2a\n"
                                      : "path allgather\npath allgather\ndowngrade cross_node halo to "
                                        "allgather\npath allgather\ndowngrade cross_node a2a to allgather\n"))
          << job.all_text();
    }
    const std::int64_t rows = layout.local_tokens();
    for (const char* path : kPaths)
      for (const int rank : {0, 1}) {
        std::ifstream file(folder.path + "/" + path + "." + std::to_string(rank), std::ios::binary);
        std::vector<float> out(static_cast<std::size_t>(rows * kParityShape.heads_q * kParityShape.dim_v()));
        file.read(reinterpret_cast<char*>(out.data()),
                  static_cast<std::streamsize>(out.size() * sizeof(float)));
        const std::vector<double> whole(want.out.begin(), want.out.end()), got(out.begin(), out.end());
        const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(rank * out.size());
        EXPECT_TRUE(numbers_pass(check::Quantity::out, DType::f32, got, {begin, begin + got.size()}))
            << path << ", rank " << rank;
      }
  }
}

TEST(Drills, AKilledRankIsNamedOnEverySurvivorAtOnce) {
  for (const char* how : {"die_before", "die_in_step", "die_after"}) {
    SCOPED_TRACE(how);
    Job job(3, command({"do=steps", "odd=1", std::string("how=") + how}));
    ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
    EXPECT_LT(job.finish({0, 2}), kMore);
    expect_error(job, {0, 2}, "peer_failed", 1, {"rank 1 failed", "process has ended", "seen by rank"});
    for (const int rank : {0, 2})
      EXPECT_TRUE(std::regex_search(
          job[rank].text,
          std::regex("seen by rank [02] (in|before|after) the (agreement|exchange|all-gather|end)")))
          << job.all_text();
  }
}

TEST(Drills, ADeathInTheMiddleOfATransfer) {
  for (const int delay_ms : {0, 3, 17}) {
    for (const int victim : {0, 2}) {
      Job job(3, command({"do=pump"}));
      for (const int rank : {0, 1, 2}) ASSERT_TRUE(job.wait_for(rank, "pumping")) << job.all_text();
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      job.send_signal(victim, SIGKILL);
      const std::vector<int> survivors = victim == 0 ? std::vector<int>{1, 2} : std::vector<int>{0, 1};
      EXPECT_LT(job.finish(survivors), kMore);
      expect_error(job, survivors, "peer_failed", victim,
                   {"rank " + std::to_string(victim) + " failed", "seen by rank"});
    }
  }
}

TEST(Drills, AStoppedRankIsNamedAfterFiveHeartbeats) {
  Job job(3, command({"do=steps", "odd=1", "how=stop_before", "agreement.heartbeat_s=0.4"}));
  ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
  EXPECT_LT(job.finish({0, 2}), 5 * 0.4 + kMore);
  expect_error(job, {0, 2}, "peer_failed", 1, {"rank 1 failed", "silent for 5 heartbeats", "the agreement"});
  // It wakes up to a group that has given it up, and learns whose fault that was.
  job.send_signal(1, SIGCONT);
  EXPECT_LT(job.finish({1}), kMore + 5 * 0.4);
  expect_error(job, {1}, "peer_failed", 1, {"rank 1 failed", "silent for 5 heartbeats"});
}

TEST(Drills, ARankThatIsStoppedInATransferIsNamed) {
  Job job(3, command({"do=pump", "agreement.heartbeat_s=0.4"}));
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(job.wait_for(rank, "pumping")) << job.all_text();
  job.send_signal(2, SIGSTOP);
  EXPECT_LT(job.finish({0, 1}), 5 * 0.4 + kMore);
  expect_error(job, {0, 1}, "peer_failed", 2, {"rank 2 failed", "silent for 5 heartbeats"});
}

TEST(Drills, ARankThatSkipsIsNamedAfterTheDeadline) {
  for (const char* how : {"skip_step", "skip_forward"}) {
    SCOPED_TRACE(how);
    Job job(3, command({"do=steps", "odd=2", std::string("how=") + how, "agreement.timeout_s=1"}));
    ASSERT_TRUE(job.wait_for(0, "step 1")) << job.all_text();
    EXPECT_LT(job.finish({0, 1}), 1 + kMore);
    if (std::string(how) == "skip_step") {
      expect_error(job, {0, 1}, "timeout", 2, {"rank 2 did not come to the agreement", "within 1"});
      continue;
    }
    // Rank 2 is an agreement ahead: whose deadline ends first is chance, both texts tell the whole story.
    for (const int rank : {0, 1}) {
      const bool ahead = job[rank].text.find("ranks 0, 1 did not come to the agreement") != std::string::npos;
      EXPECT_THAT(job[rank].text,
                  HasSubstr(ahead ? "rank 0 waits in the exchange" : "rank 2 waits in the agreement"))
          << job.all_text();
      EXPECT_THAT(job[rank].text, HasSubstr(ahead ? "rank 1 waits in the exchange"
                                                  : "rank 2 did not come to the exchange in host memory"))
          << job.all_text();
    }
  }
}

TEST(Drills, ALateRankIsNotADeadOne) {
  // Three exchange deadlines late, before begin_step, and with heartbeats that would have run out.
  Job job(3, command({"do=steps", "steps=4", "odd=1", "how=late", "late_s=1.5",
                      "failure.exchange_timeout_s=0.5", "agreement.heartbeat_s=0.25"}));
  job.finish();
  EXPECT_TRUE(job.all_exited_well());
  for (const int rank : {0, 1, 2}) {
    EXPECT_THAT(job[rank].text, HasSubstr("end\n")) << job.all_text();
    EXPECT_THAT(job[rank].text, Not(HasSubstr("error"))) << job.all_text();
  }
}

TEST(Drills, EveryDifferenceIsNamedAndTheCommunicatorGoesOn) {
  const Folder folder;
  Job job(3, command({"do=differ", "out=" + folder.path, "agreement.timeout_s=30"}));
  job.finish();
  ASSERT_TRUE(job.all_exited_well()) << job.all_text();
  int cases = 0;
  for (const int rank : {0, 1, 2}) {
    std::istringstream lines(job[rank].text);
    EXPECT_THAT(job[rank].text, HasSubstr("end\n")) << job.all_text();
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("case ", 0) != 0) continue;
      ++cases;
      const std::string what = line.substr(5, line.find(' ', 5) - 5);
      if (what == "frame" || what.rfind("local", 0) == 0) {
        EXPECT_THAT(line, HasSubstr("agreed"));
      } else {
        EXPECT_THAT(
            line, testing::AllOf(HasSubstr("divergence"), HasSubstr(" " + what + ": "), HasSubstr("on rank 1")))
            << line;
      }
    }
  }
  EXPECT_GE(cases, 3 * 22);
}

TEST(Drills, AbortsAndFailedCallsReachEveryRank) {
  struct Case {
    const char *how, *code, *words;
  };
  for (const Case& c : {Case{"abort", "peer_failed", "aborted: told to"},
                        Case{"bad_call", "invalid_argument", "forward: no prepared shape"}}) {
    SCOPED_TRACE(c.how);
    Job job(3, command({"do=steps", "odd=2", std::string("how=") + c.how}));
    EXPECT_LT(job.finish(), 10);
    EXPECT_TRUE(job.all_exited_well()) << job.all_text();
    expect_error(job, {0, 1}, "peer_failed", 2, {"rank 2 failed with", c.words});
    expect_error(job, {2}, c.code, 2, {c.words});
  }
}

TEST(Drills, ARankThatLeavesIsNamedByThoseWhoNeedIt) {
  Job job(3, command({"do=steps", "odd=1", "how=leave"}));
  EXPECT_LT(job.finish(), 10);
  EXPECT_TRUE(job.all_exited_well()) << job.all_text();
  expect_error(job, {0, 2}, "peer_failed", 1, {"it left the group", "seen by rank"});
}

TEST(Drills, LeavingWaitsForNoPeerThatIsStopped) {
  Job job(3, command({"do=steps", "odd=0", "how=leave_late"}));
  for (const int rank : {0, 1, 2}) ASSERT_TRUE(job.wait_for(rank, "step 1")) << job.all_text();
  job.send_signal(1, SIGSTOP);
  ASSERT_TRUE(job.wait_for(0, "leaving")) << job.all_text();
  EXPECT_LT(job.finish({0}), kMore);
  EXPECT_THAT(job[0].text, HasSubstr("end\n")) << job.all_text();
  job.send_signal(1, SIGCONT);
  job.finish();
  expect_error(job, {1, 2}, "peer_failed", 0, {"it left the group"});
}

TEST(Drills, SurvivorsFormANewCommunicatorAndGoOn) {
  // The rendezvous of the job lives with rank 0: whoever survives it meets elsewhere.
  comm::Fd probe = comm::listen_on("127.0.0.1", 0);
  const std::string elsewhere = comm::to_text(comm::local_endpoint(probe.get()));
  probe.reset();
  struct Case {
    int victim;
    std::string survivors, at;
  };
  for (const Case& c : {Case{2, "01", ""}, Case{0, "12", elsewhere}}) {
    Job job(3, command({"do=steps", "odd=" + std::to_string(c.victim), "how=die_in_step",
                        "reform=" + c.survivors, "reform_at=" + c.at}));
    const std::vector<int> survivors{c.survivors[0] - '0', c.survivors[1] - '0'};
    job.finish(survivors);
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(job[survivors[static_cast<std::size_t>(i)]].text,
                  HasSubstr("reformed as rank " + std::to_string(i) + " of 2"))
          << job.all_text();
  }
}

TEST(Drills, AMemberThatNeverStartsIsNamed) {
  Job job(2, command({"do=steps", "steps=1", "create_timeout=1"}), [](int rank) {
    return rank == 1 ? std::vector<std::string>{"name=other"} : std::vector<std::string>{};
  });
  EXPECT_LT(job.finish(), 1 + kMore);
  EXPECT_THAT(job[0].text, HasSubstr("rank 1 did not come to the creation of the communicator"))
      << job.all_text();
  EXPECT_THAT(job[1].text, HasSubstr("rank 0 did not come to the creation of the communicator"))
      << job.all_text();
}

}  // namespace
}  // namespace bdcp::test
