// bdcp-bench and bdcp-autotune with a process per rank, on the host: the exchange goes over sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "autotune/spawn.h"
#include "support/job.h"
#include "support/run_program.h"

namespace bdcp {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

class SpawnCli : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("bdcp_spawn_" + std::to_string(getpid()));
};

const std::vector<std::string> kAttention = {"attention", "--device", "host",   "--hq", "4",       "--hkv", "2",
                                             "--d",       "16",       "--seed", "5",    "--spawn", "--json"};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(SpawnCli, AttentionIsCheckedAndTimedOverProcesses) {
  for (const char* exchange : {"allgather", "halo", "a2a"}) {
    const test::ProgramResult ran =
        test::run_program("bdcp-bench", with(kAttention, {"--world", "2", "--lengths", "20,40,4", "--check",
                                                          "--iters", "2", "--exchange", exchange}));
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    const std::vector<Json> lines = lines_of(ran.out);
    ASSERT_EQ(lines.size(), 2u) << ran.out;
    for (const Json& line : lines) {
      EXPECT_EQ(line["exchange"], exchange);
      EXPECT_EQ(line["world"], 2);
      EXPECT_EQ(line["device"], "host");
      EXPECT_TRUE(line["pass"]);
      EXPECT_GT(line["exposed_us"], 0);
    }
  }
}

// Hours of calls, and ranks that took different numbers of them would wait for each other.
TEST_F(SpawnCli, WarmupHasABound) {
  const test::ProgramResult ran =
      test::run_program("bdcp-bench", with(kAttention, {"--world", "2", "--lengths", "200", "--mode", "fwd",
                                                        "--iters", "1", "--warmup", "1000000"}));
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(lines_of(ran.out).size(), 1u);
}

TEST_F(SpawnCli, NothingExposedAtWorldOne) {
  const test::ProgramResult ran =
      test::run_program("bdcp-bench", {"attention", "--device", "host", "--hq", "2", "--hkv", "1", "--d", "8",
                                       "--lengths", "20", "--iters", "1", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  for (const Json& line : lines_of(ran.out)) EXPECT_FALSE(line.contains("exposed_us"));
}

TEST_F(SpawnCli, AnErrorOfTheRanksIsTheExitCode) {
  const test::ProgramResult ran = test::run_program(
      "bdcp-bench", with(kAttention, {"--world", "2", "--cu-seqlens", "0,4", "--cu-seqlens-k", "0,8"}));
  EXPECT_EQ(ran.exit_code, 3) << ran.out << ran.err;
  EXPECT_EQ(ran.out, "");
}

TEST_F(SpawnCli, ExchangeOverSockets) {
  const test::ProgramResult ran =
      test::run_program("bdcp-bench", {"exchange", "--device", "host", "--spawn", "--world", "3", "--sizes",
                                       "1000,64", "--iters", "2", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const std::vector<Json> lines = lines_of(ran.out);
  ASSERT_EQ(lines.size(), 6u) << ran.out;
  for (const Json& line : lines) {
    EXPECT_EQ(line["transport"], "sockets");
    EXPECT_EQ(line["world"], 3);
    EXPECT_EQ(line["received"], line["bytes"].get<int>() * (line["path"] == "halo" ? 1 : 2));
    EXPECT_GT(line["us"], 0);
    EXPECT_GT(line["latency_us"], 0);
  }
}

TEST_F(SpawnCli, AutotuneWritesWhatAutoReads) {
  const std::string file = path("measured.json");
  const test::ProgramResult tuned =
      test::run_program("bdcp-autotune", {"exchange", "--out", file, "--device", "host", "--spawn", "--world",
                                          "2", "--sizes", "64,4096", "--iters", "2", "--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(lines_of(tuned.out).size(), 6u) << tuned.out;
  std::ifstream in(file);
  const Json row = Json::parse(in)["rows"].at(0);
  EXPECT_EQ(row["world"], 2);
  EXPECT_EQ(row["transport"], "sockets");
  EXPECT_EQ(row["device"], "host");

  std::ofstream(path("policy.json")) << R"({"exchange": {"measured": "measured.json"}})";
  const std::vector<std::string> auto_path = {"--lengths", "64",       "--iters",
                                              "1",         "--policy", path("policy.json")};
  const test::ProgramResult fits =
      test::run_program("bdcp-bench", with(with(kAttention, auto_path), {"--world", "2"}));
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  const test::ProgramResult wider =
      test::run_program("bdcp-bench", with(with(kAttention, auto_path), {"--world", "3"}));
  EXPECT_EQ(wider.exit_code, 3);
  EXPECT_THAT(wider.err, HasSubstr("/exchange/measured: file"));
  EXPECT_THAT(wider.err, HasSubstr("nothing was measured with world 3"));
}

TEST_F(SpawnCli, AutotuneNamesWhatIsWrong) {
  EXPECT_EQ(test::run_program("bdcp-autotune", {"exchange"}).exit_code, 2);
  const test::ProgramResult alone =
      test::run_program("bdcp-autotune", {"exchange", "--out", path("m.json"), "--device", "host"});
  EXPECT_EQ(alone.exit_code, 3);
  EXPECT_THAT(alone.err, HasSubstr("an exchange needs 2 ranks or more"));
  std::ofstream(path("bad.json")) << "{}";
  const test::ProgramResult bad = test::run_program(
      "bdcp-autotune", {"exchange", "--out", path("bad.json"), "--device", "host", "--world", "2"});
  EXPECT_EQ(bad.exit_code, 3);
  EXPECT_THAT(bad.err, HasSubstr("bad.json"));
  const test::ProgramResult nowhere =
      test::run_program("bdcp-autotune", {"exchange", "--out", path("no/such/folder.json"), "--device", "host",
                                          "--world", "2", "--sizes", "64", "--iters", "1"});
  EXPECT_EQ(nowhere.exit_code, 4);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot be written"));
}

/// Of /proc/PID/stat: the name, and what follows it; empty if there is no such process.
struct ProcessState {
  std::string name, state;
  pid_t parent = 0;
  explicit ProcessState(const std::string& pid) {
    std::ifstream in("/proc/" + pid + "/stat");
    std::string line;  // none if the process ends while it is read
    std::getline(in, line, '\0');
    const std::size_t open = line.find('('), close = line.rfind(')');
    if (close == std::string::npos) return;
    name = line.substr(open + 1, close - open - 1);
    std::istringstream(line.substr(close + 1)) >> state >> parent;
  }
  /// Nobody may be there to collect an orphan.
  bool runs() const { return !state.empty() && state != "Z" && state != "X"; }
};

std::vector<std::string> children_of(pid_t launcher) {
  std::vector<std::string> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") == std::string::npos && ProcessState(pid).parent == launcher)
      children.push_back(pid);
  }
  return children;
}

/// And kills them: a failing test leaves nothing behind.
std::vector<std::string> running_after_two_seconds(const std::vector<std::string>& pids) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (;;) {
    std::vector<std::string> left;
    for (const std::string& pid : pids)
      if (ProcessState(pid).runs()) left.push_back(pid);
    if (left.empty() || std::chrono::steady_clock::now() >= end) {
      for (const std::string& pid : left) kill(std::stoi(pid), SIGKILL);
      return left;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// A launcher whose two ranks are at work.
class Spawned : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job.wait_for(0, "\"pass\":true")) << job.all_text();
    ranks = children_of(job[0].pid);
    ASSERT_EQ(ranks.size(), 2u);
  }
  test::Job job{1, with({BDCP_BINARY_DIR "/bin/bdcp-bench"},
                        with(kAttention, {"--world", "2", "--random", "100000", "--max-tokens", "64"}))};
  std::vector<std::string> ranks;
};
class SpawnEnds : public Spawned, public testing::WithParamInterface<int> {};

TEST_P(SpawnEnds, RanksEndWithTheirLauncher) {
  for (const std::string& rank : ranks) EXPECT_EQ(ProcessState(rank).name, "bdcp-bench");
  job.send_signal(0, GetParam());
  EXPECT_THAT(running_after_two_seconds(ranks), testing::IsEmpty());
  job.finish();
  ASSERT_TRUE(WIFSIGNALED(job[0].status)) << job[0].status;
  EXPECT_EQ(WTERMSIG(job[0].status), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Signals, SpawnEnds, testing::Values(SIGKILL, SIGTERM, SIGINT, SIGHUP));

// A rank that does not end when asked to, because it has been stopped.
TEST_F(Spawned, RankEndsThoughStopped) {
  kill(std::stoi(ranks[1]), SIGSTOP);
  job.send_signal(0, SIGTERM);
  EXPECT_THAT(running_after_two_seconds(ranks), testing::IsEmpty());
  job.finish();
  EXPECT_TRUE(WIFSIGNALED(job[0].status) && WTERMSIG(job[0].status) == SIGTERM) << job[0].status;
}

TEST(SpawnedRank, DoesNotStartWithoutItsLauncher) {
  for (const char* program : {"bdcp-bench", "bdcp-autotune"}) {
    const test::ProgramResult ran = test::run_program(program, {"--help"}, {"BDCP_SPAWNED_BY=0"});
    EXPECT_EQ(ran.exit_code, 4) << program;
    EXPECT_EQ(ran.out, "");
  }
}

TEST(SpawnedRank, TellsNobodyElse) {
  const auto at_end = [] {
    int number = -1;
    prctl(PR_GET_PDEATHSIG, &number);
    return number;
  };
  const int before = at_end();
  autotune::end_with_launcher();
  EXPECT_EQ(at_end(), before) << "this process is no rank";
  setenv("BDCP_SPAWNED_BY", std::to_string(getppid()).c_str(), 1);
  autotune::end_with_launcher();
  EXPECT_EQ(at_end(), SIGKILL);
  EXPECT_EQ(std::getenv("BDCP_SPAWNED_BY"), nullptr);
  prctl(PR_SET_PDEATHSIG, before);
}

}  // namespace
}  // namespace bdcp
