#include "autotune/spawn.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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
constexpr std::chrono::seconds kForSurvivors{30}, kForSignalled{1};
constexpr const char* kSpawnedBy = "BDCP_SPAWNED_BY";  // of a rank: its launcher's process id

std::string random_text() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 8; ++i) text += fmt::format("{:08x}", device());
  return text;
}

/// This program's file, so that ranks have its name; the link where the file has been replaced.
std::string own_file() {
  const char* const link = "/proc/self/exe";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::read_symlink(link, error);
  return !error && std::filesystem::exists(file, error) ? file.string() : link;
}

volatile std::sig_atomic_t caught = 0;  // the last signal

/// While it lives, what would end the launcher is kept in `caught`.
class CatchSignals {
 public:
  CatchSignals() {
    caught = 0;
    struct sigaction keep = {};
    keep.sa_handler = [](int number) { caught = number; };
    keep.sa_flags = SA_RESTART;
    sigemptyset(&keep.sa_mask);
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      sigaction(kNumbers[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kNumbers[i], &keep, nullptr);  // nohup ignores SIGHUP
    }
  }
  ~CatchSignals() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i) sigaction(kNumbers[i], &before_[i], nullptr);
  }
  CatchSignals(const CatchSignals&) = delete;
  CatchSignals& operator=(const CatchSignals&) = delete;

 private:
  static constexpr std::array kNumbers{SIGTERM, SIGINT, SIGHUP};
  std::array<struct sigaction, kNumbers.size()> before_;
};

class Ranks {
 public:
  explicit Ranks(std::string name) : name_(std::move(name)), run_(random_text()), secret_(random_text()) {}
  ~Ranks() {
    send(SIGKILL);
    for (std::size_t rank = 0; rank < pids_.size(); ++rank)
      if (!status_[rank]) (void)waitpid(pids_[rank], nullptr, 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start(int world, const std::vector<std::string>& arguments) {
    const std::string file = own_file();
    for (int rank = 0; rank < world; ++rank) start(file, rank, world, arguments);
  }

  int wait() {
    int result = kExitOk;
    std::optional<Clock::time_point> end;  // once one has failed, or a signal has come
    for (std::size_t left = pids_.size(); left > 0;) {
      // Passed on from here, not by the handler: only this loop knows which process ids are still the ranks'.
      if (const int number = caught; number != passed_on_) {
        if (passed_on_ == 0) end = Clock::now() + kForSignalled;
        passed_on_ = number;
        send(number);
      }
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
    if (number == caught) return kExitCheckFailed;
    fmt::print(stderr, "{}: rank {} was ended by signal {} ({})\n", name_, rank, number, strsignal(number));
    return kExitCheckFailed;
  }

  void send(int number) const {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank)
      if (!status_[rank]) kill(pids_[rank], number);
  }

  void start(const std::string& file, int rank, int world, const std::vector<std::string>& arguments) {
    const std::vector<std::string> own = {fmt::format("RANK={}", rank),
                                          fmt::format("WORLD_SIZE={}", world),
                                          fmt::format("LOCAL_RANK={}", rank),
                                          "MASTER_ADDR=127.0.0.1",
                                          "TORCHELASTIC_RUN_ID=" + run_,
                                          "BDCP_SECRET=" + secret_,
                                          fmt::format("{}={}", kSpawnedBy, getpid())};
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
    const int error = posix_spawn(&pid, file.c_str(), nullptr, nullptr, argv.data(), env.data());
    require(error == 0, ErrorCode::io_error,
            [&] { return fmt::format("rank {} does not start: {}", rank, std::strerror(error)); });
    pids_.push_back(pid);
    status_.emplace_back();
  }

  const std::string name_, run_, secret_;
  std::vector<pid_t> pids_;
  std::vector<std::optional<int>> status_;
  int passed_on_ = 0;
};

}  // namespace

void end_with_launcher() {
  const char* const text = std::getenv(kSpawnedBy);
  if (!text) return;
  const long launcher = std::strtol(text, nullptr, 10);
  unsetenv(kSpawnedBy);  // programs that a rank starts have another parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(kExitEnvironment);  // it had ended before the kernel was told
}

int spawn_ranks(const std::string& name, int world, const std::vector<std::string>& arguments) {
  int result = kExitOk;
  {
    const CatchSignals catching;
    Ranks ranks(name);
    ranks.start(world, arguments);
    result = ranks.wait();
  }
  const int number = caught;
  if (number == 0) return result;
  raise(number);        // ends this process as if it had not been caught
  return 128 + number;  // as a shell would say, where that was handled
}

}  // namespace bdcp::autotune
