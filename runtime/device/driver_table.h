// The driver's functions, found by cuGetProcAddress at version 12040. Private to device/: the one header that
// includes cuda.h.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <utility>

#include "device/dynamic_library.h"
#include "device/fork_guard.h"

namespace bdcp::device {

/// Functions are asked for as of this CUDA version, so newer drivers give the signatures of 12.4.
inline constexpr int kDriverApiVersion = 12040;

// clang-format off
#define BDCP_DRIVER_FUNCTIONS(X)                                                                          \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString)                                   \
  X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)       \
  X(cuDeviceGetUuid)                                                                                      \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                                                \
  X(cuCtxGetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetStreamPriorityRange)                \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)                                           \
  X(cuMemcpyAsync) X(cuMemcpy2DAsync) X(cuMemsetD8Async)                                                  \
  X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent)            \
  X(cuStreamGetId) X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode)                            \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)               \
  X(cuEventElapsedTime)                                                                                   \
  X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuKernelGetFunction)                    \
  X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuFuncLoad) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuTensorMapEncodeTiled)
// clang-format on

/// Name and pointer; the pointer is null where the driver lacks the function, which is an error at first use.
template <class F>
struct DriverFunction {
  const char* name;
  F pointer = nullptr;
};

/// Immutable once loaded; thread safe.
struct DriverTable {
  // cuda.h renames functions by macros (cuMemAlloc -> cuMemAlloc_v2): pasting keeps the plain name for the
  // member, decltype takes the signature of the current one.
#define BDCP_DECLARE(name) DriverFunction<decltype(&::name)> name##_{#name};
  BDCP_DRIVER_FUNCTIONS(BDCP_DECLARE)
#undef BDCP_DECLARE

  std::shared_ptr<const DynamicLibrary> library;
  int version = 0;  ///< what cuDriverGetVersion gives
  ForkGuard fork_guard;

  /// Null with `why` filled where libcuda is missing, too old, or cannot be initialised.
  static std::unique_ptr<DriverTable> open(const Env& env, std::string* why);

  /// Calls, and throws Error with the call, the error's name and text and `describe()` on failure.
  template <class F, class Describe, class... Args>
  void call(const DriverFunction<F>& function, Describe&& describe, Args... args) const {
    const CUresult result = try_call(function, args...);
    if (result != CUDA_SUCCESS) fail(result, function.name, describe());
  }
  /// The result of the call; throws Error(forked) in a forked child, Error(library_missing) where the driver
  /// lacks the function.
  template <class F, class... Args>
  CUresult try_call(const DriverFunction<F>& function, Args... args) const {
    if (fork_guard.forked()) fail_forked(function.name);
    if (!function.pointer) fail_missing(function.name);
    return function.pointer(args...);
  }
  /// For destructors: no error, nothing at all in a forked child.
  template <class F, class... Args>
  void quiet(const DriverFunction<F>& function, Args... args) const noexcept {
    if (function.pointer && !fork_guard.forked()) function.pointer(args...);
  }
  /// The same with a context current, which freeing needs.
  template <class F, class... Args>
  void quiet_in(void* context, const DriverFunction<F>& function, Args... args) const noexcept {
    if (fork_guard.forked() || !cuCtxPushCurrent_.pointer || !cuCtxPopCurrent_.pointer) return;
    if (cuCtxPushCurrent_.pointer(static_cast<CUcontext>(context)) != CUDA_SUCCESS) return;
    quiet(function, args...);
    CUcontext popped = nullptr;
    cuCtxPopCurrent_.pointer(&popped);
  }
  std::string describe(CUresult result) const;  ///< "CUDA_ERROR_X (n): text"

  [[noreturn]] void fail(CUresult result, const char* call, const std::string& values) const;
  [[noreturn]] void fail_missing(const char* call) const;
  [[noreturn]] void fail_forked(const char* call) const;
};

/// Makes a context current for a scope; the thread's own context is back afterwards.
class ContextScope {
 public:
  ContextScope(const DriverTable& table, void* context) : table_(table), pushed_(enter(table, context)) {}
  ~ContextScope() {
    if (pushed_) leave(table_);
  }
  /// Whether the context was not the thread's own already; then leave() is to follow.
  static bool enter(const DriverTable& table, void* context) {
    CUcontext current = nullptr;
    table.call(
        table.cuCtxGetCurrent_, [] { return std::string(); }, &current);
    if (current == context) return false;
    table.call(
        table.cuCtxPushCurrent_, [] { return std::string("the device's primary context"); },
        static_cast<CUcontext>(context));
    return true;
  }
  static void leave(const DriverTable& table) noexcept {
    CUcontext popped = nullptr;
    table.quiet(table.cuCtxPopCurrent_, &popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const DriverTable& table_;
  const bool pushed_;
};

}  // namespace bdcp::device
