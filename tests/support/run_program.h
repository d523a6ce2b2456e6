// Runs a built program and collects what it printed.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace bdcp::test {

struct ProgramResult {
  int exit_code = -1;  ///< -1: ended by a signal
  std::string out, err;
};

/// Runs bin/NAME of the build folder with `args`, no shell between. The environment is the test's own without
/// BDCP_* (whoever runs the tests may have some), plus `environment` ("NAME=value"). Throws if it cannot start.
inline ProgramResult run_program(const std::string& name, const std::vector<std::string>& args,
                                 const std::vector<std::string>& environment = {}) {
  const std::string program = std::string(BDCP_BINARY_DIR) + "/bin/" + name;
  char folder[] = "/tmp/bdcp_run_XXXXXX";
  if (!mkdtemp(folder)) throw std::runtime_error("mkdtemp failed");
  const std::string out = std::string(folder) + "/out", err = std::string(folder) + "/err";

  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> env;
  for (const std::string& entry : environment) env.push_back(const_cast<char*>(entry.c_str()));
  for (char** entry = environ; *entry; ++entry) {
    if (!std::string_view(*entry).starts_with("BDCP_")) env.push_back(*entry);
  }
  env.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) throw std::runtime_error("cannot start " + program);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  ProgramResult result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
  std::remove(out.c_str());
  std::remove(err.c_str());
  rmdir(folder);
  return result;
}

}  // namespace bdcp::test
