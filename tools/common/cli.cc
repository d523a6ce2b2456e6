#include "common/cli.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace bdcp::tools {

ExitCode exit_code(const Error& error) {
  switch (error.code()) {
    case ErrorCode::invalid_argument:
    case ErrorCode::invalid_layout:
    case ErrorCode::invalid_policy:
    case ErrorCode::unsupported:
      return exit_invalid_input;
    case ErrorCode::library_missing:
    case ErrorCode::backend_unavailable:
    case ErrorCode::out_of_memory:
    case ErrorCode::io_error:
    case ErrorCode::cuda_error:
    case ErrorCode::nccl_error:
    case ErrorCode::device_lost:
      return exit_environment;
    case ErrorCode::downgrade_refused:
    case ErrorCode::divergence:
    case ErrorCode::compile_failed:
    case ErrorCode::timeout:
    case ErrorCode::peer_failed:
    case ErrorCode::forked:
    case ErrorCode::internal:
      return exit_check_failed;
  }
  return exit_check_failed;
}

int run_tool(const std::string& name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}: {}\n", name, to_string(error.code()), error.message());
    if (!error.log().empty()) fmt::print(stderr, "{}\n", error.log());
    return exit_code(error);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: out_of_memory: the host has no more memory\n", name);
    return exit_environment;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: internal: {}\n", name, error.what());
    return exit_check_failed;
  }
}

void print_text(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  require(written, ErrorCode::io_error, [] { return fmt::format("stdout: {}", std::strerror(errno)); });
}

void print_json(const nlohmann::json& document) { print_text(document.dump() + "\n"); }

void print_json(const nlohmann::ordered_json& document) { print_text(document.dump() + "\n"); }

}  // namespace bdcp::tools
