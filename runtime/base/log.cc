#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <mutex>
#include <utility>

namespace bdcp {
namespace {

spdlog::level::level_enum to_spdlog(Log::Level level) { return static_cast<spdlog::level::level_enum>(level); }
static_assert(static_cast<int>(Log::Level::trace) == SPDLOG_LEVEL_TRACE);
static_assert(static_cast<int>(Log::Level::warn) == SPDLOG_LEVEL_WARN);

// Adapts a host's callback. (spdlog's own callback sink is newer than the oldest version supported.)
class HostSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit HostSink(Log::Sink receiver) : sink_(std::move(receiver)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    // spdlog's "critical" has no counterpart here and is never written.
    sink_(msg.level == spdlog::level::off ? Log::Level::off : static_cast<Log::Level>(msg.level),
          {msg.payload.data(), msg.payload.size()});
  }
  void flush_() override {}
  Log::Sink sink_;
};

std::shared_ptr<spdlog::sinks::sink> make_sink(Log::Sink sink) {
  if (sink) return std::make_shared<HostSink>(std::move(sink));
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
}

}  // namespace

struct Log::Impl {
  spdlog::logger logger;
};

Log::Log(Level level, Sink sink)
    : impl_(std::make_unique<Impl>(Impl{spdlog::logger("bdcp", make_sink(std::move(sink)))})) {
  set_level(level);
}
Log::~Log() = default;

void Log::set_level(Level level) {
  impl_->logger.set_level(level == Level::off ? spdlog::level::off : to_spdlog(level));
}
bool Log::enabled(Level level) const { return impl_->logger.should_log(to_spdlog(level)); }
void Log::write(Level level, std::string_view line) const {
  impl_->logger.log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace bdcp
