// Job: runs one program as several processes, one rank each, as a launcher would, and listens to their lines.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

extern char** environ;

namespace bdcp::test {

class Job {
 public:
  using Clock = std::chrono::steady_clock;
  struct Process {
    pid_t pid = -1;
    int out = -1;
    std::string text;  ///< what it has printed
    int status = -1;   ///< as waitpid says, once it has ended
  };

  /// `extra(rank)`: further arguments of one rank; `more`: further variables of all ("NAME=value").
  Job(int world, const std::vector<std::string>& command,
      const std::function<std::vector<std::string>(int)>& extra = {},
      const std::vector<std::string>& more = {}) {
    static int jobs = 0;
    const std::string run = "test-" + std::to_string(getpid()) + "-" + std::to_string(++jobs);
    for (int rank = 0; rank < world; ++rank) {
      std::vector<std::string> arguments = command;
      if (extra)
        for (std::string& argument : extra(rank)) arguments.push_back(std::move(argument));
      std::vector<std::string> variables = more;
      for (std::string& variable : std::vector<std::string>{
               "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world), "MASTER_ADDR=127.0.0.1",
               "TORCHELASTIC_RUN_ID=" + run, "BDCP_SECRET=" + run})
        variables.push_back(std::move(variable));
      start(arguments, std::move(variables));
    }
  }
  ~Job() {
    for (Process& process : processes_) {
      if (process.status < 0) {
        kill(process.pid, SIGKILL);
        waitpid(process.pid, &process.status, 0);
      }
      if (process.out >= 0) close(process.out);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Process& operator[](int rank) { return processes_[static_cast<std::size_t>(rank)]; }
  void send_signal(int rank, int number) { kill((*this)[rank].pid, number); }

  /// Waits until `rank` has printed `words`; false if it ends, or 60 s pass, before.
  bool wait_for(int rank, const std::string& words) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while ((*this)[rank].text.find(words) == std::string::npos) {
      if ((*this)[rank].out < 0 || Clock::now() >= end) return false;
      listen(end);
    }
    return true;
  }

  /// Seconds until the given ranks (all, if none) have ended; they are killed after 60.
  double finish(std::vector<int> ranks = {}) {
    const auto begin = Clock::now(), end = begin + std::chrono::seconds(60);
    if (ranks.empty())
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) ranks.push_back(static_cast<int>(rank));
    for (const int rank : ranks) {
      Process& process = (*this)[rank];
      while (process.out >= 0 && Clock::now() < end) listen(end);
      if (process.out >= 0) kill(process.pid, SIGKILL);
      if (process.status < 0) waitpid(process.pid, &process.status, 0);
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  bool all_exited_well() const {
    for (const Process& process : processes_)
      if (!WIFEXITED(process.status) || WEXITSTATUS(process.status) != 0) return false;
    return true;
  }
  std::string all_text() const {
    std::string text;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank)
      text += "--- rank " + std::to_string(rank) + ", status " + std::to_string(processes_[rank].status) +
              "\n" + processes_[rank].text;
    return text;
  }

 private:
  void start(const std::vector<std::string>& arguments, std::vector<std::string> variables) {
    for (char** one = environ; *one; ++one) {
      const std::string variable = *one;
      bool launcher = false;
      for (const char* prefix : {"RANK=", "WORLD_SIZE=", "MASTER_", "LOCAL_RANK=", "TORCHELASTIC_", "OMPI_",
                                 "PMI_", "SLURM_", "BDCP_"})
        launcher = launcher || variable.rfind(prefix, 0) == 0;
      if (!launcher) variables.push_back(variable);
    }
    std::vector<char*> argv, env;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    for (const std::string& variable : variables) env.push_back(const_cast<char*>(variable.c_str()));
    argv.push_back(nullptr);
    env.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    Process process;
    process.out = ends[0];
    const int error = posix_spawn(&process.pid, argv[0], &actions, nullptr, argv.data(), env.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) throw std::runtime_error(arguments[0] + ": " + std::strerror(error));
    processes_.push_back(std::move(process));
  }

  void listen(Clock::time_point end) {
    std::vector<pollfd> polled;
    for (const Process& process : processes_) polled.push_back({process.out, POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (poll(polled.data(), polled.size(), static_cast<int>(left > 0 ? left : 0)) <= 0) return;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (!polled[i].revents) continue;
      char buffer[4096];
      const ssize_t got = read(processes_[i].out, buffer, sizeof buffer);
      if (got > 0) {
        processes_[i].text.append(buffer, static_cast<std::size_t>(got));
      } else if (got == 0) {
        close(processes_[i].out);
        processes_[i].out = -1;
      }
    }
  }

  std::vector<Process> processes_;
};

}  // namespace bdcp::test
