// Errors of bdcp. Broken calls throw bdcp::Error; decisions and cache misses are values, never exceptions.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace bdcp {

enum class ErrorCode {
  invalid_argument,     ///< a call's argument is wrong; the message names field, value and what is allowed
  invalid_layout,       ///< lengths, cu_seqlens or document ids that no layout can have
  invalid_policy,       ///< a policy, model or tuned-table file does not validate
  unsupported,          ///< valid input that this build or this situation cannot serve
  backend_unavailable,  ///< a backend asked for by name cannot run the call
  downgrade_refused,    ///< a downgrade happened whose code the policy sets to "error"
  divergence,           ///< ranks disagree about the step; names ranks and fields
  library_missing,      ///< libcuda, libnvrtc or libnccl could not be opened
  compile_failed,       ///< NVRTC rejected a kernel; log() holds its log
  cuda_error,           ///< a driver call failed
  nccl_error,           ///< an NCCL call failed
  out_of_memory,        ///< device or host memory is exhausted
  device_lost,          ///< sticky device error: this process must exit
  timeout,              ///< a bounded wait ended
  peer_failed,          ///< another rank failed; origin_rank() names it
  io_error,             ///< a file could not be read or written
  forked,               ///< used in a child after fork
  internal              ///< a bug in bdcp
};

/// What is unusable after the error.
enum class ErrorScope { call, step, communicator, device, process };

std::string_view to_string(ErrorCode code);
std::string_view to_string(ErrorScope scope);

/// Where an error was raised. (std::source_location is missing with some compilers this library supports.)
struct SourceLocation {
  const char* file = "";
  int line = 0;
  static constexpr SourceLocation current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// The one exception type of the library. Immutable; copying shares nothing mutable.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, ErrorScope scope = ErrorScope::call,
        SourceLocation where = SourceLocation::current());

  const char* what() const noexcept override { return what_.c_str(); }
  ErrorCode code() const noexcept { return code_; }
  ErrorScope scope() const noexcept { return scope_; }
  /// Whether the same call may succeed later with nothing else changed.
  bool retryable() const noexcept { return retryable_; }
  /// Message alone, without code and position.
  const std::string& message() const noexcept { return message_; }
  /// The failing foreign call ("cuLaunchKernel"), or empty.
  const std::string& call() const noexcept { return call_; }
  /// Compiler or tool output that belongs to the error, or empty.
  const std::string& log() const noexcept { return log_; }
  /// The rank on which the failure began, or -1 where that has no meaning.
  int origin_rank() const noexcept { return origin_rank_; }
  const char* file() const noexcept { return file_; }
  int line() const noexcept { return line_; }

  Error& with_call(std::string call);
  Error& with_log(std::string log);
  Error& with_origin(int rank);
  Error& with_retry(bool retryable);

 private:
  void render();
  ErrorCode code_;
  ErrorScope scope_;
  bool retryable_ = false;
  int origin_rank_ = -1;
  int line_;
  const char* file_;
  std::string message_, call_, log_, what_;
};

}  // namespace bdcp
