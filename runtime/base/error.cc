#include "bdcp/error.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace bdcp {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::invalid_layout:
      return "invalid_layout";
    case ErrorCode::invalid_policy:
      return "invalid_policy";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::backend_unavailable:
      return "backend_unavailable";
    case ErrorCode::downgrade_refused:
      return "downgrade_refused";
    case ErrorCode::divergence:
      return "divergence";
    case ErrorCode::library_missing:
      return "library_missing";
    case ErrorCode::compile_failed:
      return "compile_failed";
    case ErrorCode::cuda_error:
      return "cuda_error";
    case ErrorCode::nccl_error:
      return "nccl_error";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::device_lost:
      return "device_lost";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_failed:
      return "peer_failed";
    case ErrorCode::io_error:
      return "io_error";
    case ErrorCode::forked:
      return "forked";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

std::string_view to_string(ErrorScope scope) {
  switch (scope) {
    case ErrorScope::call:
      return "call";
    case ErrorScope::step:
      return "step";
    case ErrorScope::communicator:
      return "communicator";
    case ErrorScope::device:
      return "device";
    case ErrorScope::process:
      return "process";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string message, ErrorScope scope, SourceLocation where)
    : code_(code),
      scope_(scope),
      retryable_(code == ErrorCode::timeout || code == ErrorCode::out_of_memory),
      line_(where.line),
      file_(where.file),
      message_(std::move(message)) {
  render();
}

void Error::render() {
  const char* slash = std::strrchr(file_, '/');
  what_ = fmt::format("{}: {}", to_string(code_), message_);
  if (!call_.empty()) what_ += fmt::format(" [call: {}]", call_);
  if (origin_rank_ >= 0) what_ += fmt::format(" [rank {}]", origin_rank_);
  what_ += fmt::format(" ({}:{})", slash ? slash + 1 : file_, line_);
  if (!log_.empty()) what_ += fmt::format("\n{}", log_);
}

Error& Error::with_call(std::string call) {
  call_ = std::move(call);
  render();
  return *this;
}
Error& Error::with_log(std::string log) {
  log_ = std::move(log);
  render();
  return *this;
}
Error& Error::with_origin(int rank) {
  origin_rank_ = rank;
  render();
  return *this;
}
Error& Error::with_retry(bool retryable) {
  retryable_ = retryable;
  return *this;
}

}  // namespace bdcp
