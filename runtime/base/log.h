// Log: where a Runtime's lines go. One per Runtime; shared with its modules; thread safe.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "bdcp/policy.h"

namespace bdcp {

class Log {
 public:
  using Level = PolicyValues::LogLevel;
  using Sink = std::function<void(Level, std::string_view)>;
  /// Lines go to `sink`, or to stderr through spdlog when it is empty.
  explicit Log(Level level = Level::info, Sink sink = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool enabled(Level level) const;
  void set_level(Level level);
  void write(Level level, std::string_view line) const;
  void debug(std::string_view line) const { write(Level::debug, line); }
  void info(std::string_view line) const { write(Level::info, line); }
  void warn(std::string_view line) const { write(Level::warn, line); }
  void error(std::string_view line) const { write(Level::error, line); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bdcp
