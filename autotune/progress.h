// Progress of a long job on stderr: a bar on a terminal, plain lines otherwise.
#pragma once

#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>

namespace bdcp::autotune {

/// Thread safe. Lines and the bar share the terminal without tearing each other.
class Progress {
 public:
  /// `bar`: draw one; else line() prints and step() is silent.
  Progress(std::FILE* stream, bool bar, std::size_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void line(const std::string& text);  ///< on a bar: its label
  void step(std::size_t done);

 private:
  void draw();
  std::FILE* const stream_;
  const bool bar_;
  const std::size_t total_;
  std::mutex mutex_;
  std::size_t done_ = 0;
  std::string label_;
};

/// Whether stderr is a terminal that can redraw a line.
bool stderr_is_terminal();

}  // namespace bdcp::autotune
