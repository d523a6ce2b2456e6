#include "autotune/spawn.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "autotune/exit_code.h"
#include "base/check.h"

extern char** environ;

namespace bdcp::autotune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kForSurvivors{30};

std::string random_text() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 8; ++i) text += fmt::format("{:08x}", device());
  return text;
}

class Ranks {
 public:
  Ranks(std::string name, int world, const std::vector<std::string>& arguments)
      : name_(std::move(name)),
        run_(random_text()),
        secret_(random_text()),
        status_(static_cast<std::size_t>(world)) {
    for (int rank = 0; rank < world; ++rank) start(rank, world, arguments);
  }
  ~Ranks() {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      if (status_[rank]) continue;
      kill(pids_[rank], SIGKILL);
      (void)waitpid(pids_[rank], nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int wait() {
    int result = kExitOk;
    std::optional<Clock::time_point> end;  // once one has failed
    for (std::size_t left = pids_.size(); left > 0;) {
      bool progress = false;
      for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
        int status = 0;
        if (status_[rank] || waitpid(pids_[rank], &status, WNOHANG) != pids_[rank]) continue;
        status_[rank] = status;
        progress = true;
        --left;
        const int code = judge(rank, status);
        if (code == kExitOk) continue;
        if (result == kExitOk) result = code;
        if (!end) end = Clock::now() + kForSurvivors;
      }
      if (end && Clock::now() >= *end) {
        fmt::print(stderr, "{}: {} rank(s) did not end and are killed\n", name_, left);
        return result;
      }
      if (!progress) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return result;
  }

 private:
  int judge(std::size_t rank, int status) const {
    if (WIFEXITED(status)) return WEXITSTATUS(status);  // what failed is on stderr already
    const int number = WTERMSIG(status);
    fmt::print(stderr, "{}: rank {} was ended by signal {} ({})\n", name_, rank, number, strsignal(number));
    return kExitCheckFailed;
  }

  void start(int rank, int world, const std::vector<std::string>& arguments) {
    const std::vector<std::string> own = {
        fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", world), fmt::format("LOCAL_RANK={}", rank),
        "MASTER_ADDR=127.0.0.1",      "TORCHELASTIC_RUN_ID=" + run_,       "BDCP_SECRET=" + secret_};
    std::vector<char*> argv, env;
    argv.push_back(const_cast<char*>(name_.c_str()));
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    for (const std::string& variable : own) env.push_back(const_cast<char*>(variable.c_str()));
    for (char** one = environ; *one; ++one) {
      const std::string_view variable = *one;
      bool replaced = false;
      for (const std::string& mine : own)
        replaced = replaced || variable.starts_with(std::string_view(mine).substr(0, mine.find('=') + 1));
      if (!replaced) env.push_back(*one);
    }
    argv.push_back(nullptr);
    env.push_back(nullptr);
    pid_t pid = -1;
    const int error = posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), env.data());
    require(error == 0, ErrorCode::io_error,
            [&] { return fmt::format("rank {} does not start: {}", rank, std::strerror(error)); });
    pids_.push_back(pid);
  }

  const std::string name_, run_, secret_;
  std::vector<pid_t> pids_;
  std::vector<std::optional<int>> status_;
};

}  // namespace

int spawn_ranks(const std::string& name, int world, const std::vector<std::string>& arguments) {
  return Ranks(name, world, arguments).wait();
}

}  // namespace bdcp::autotune
