#include "device/driver_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "bdcp/error.h"

namespace bdcp::device {
namespace {

// Errors after which every later call in the process fails: the context is gone. By number, since older
// headers lack some of the names.
bool is_sticky(CUresult result) {
  static constexpr int kSticky[] = {
      214,  // ECC_UNCORRECTABLE
      220,  // NVLINK_UNCORRECTABLE
      700,  // ILLEGAL_ADDRESS
      702,  // LAUNCH_TIMEOUT
      709,  // CONTEXT_IS_DESTROYED
      710,  // ASSERT
      714,  // HARDWARE_STACK_ERROR
      715,  // ILLEGAL_INSTRUCTION
      716,  // MISALIGNED_ADDRESS
      717,  // INVALID_ADDRESS_SPACE
      718,  // INVALID_PC
      719,  // LAUNCH_FAILED
      721,  // CONTAINED
      809,  // MPS_CLIENT_TERMINATED
      911,  // EXTERNAL_DEVICE
  };
  return std::find(std::begin(kSticky), std::end(kSticky), static_cast<int>(result)) != std::end(kSticky);
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::unique_ptr<DriverTable> DriverTable::open(const Env& env, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return nullptr;
  };
  std::string reason;
  // Not the toolkit folders: what they call libcuda is a stub for linking.
  auto library =
      DynamicLibrary::open({"libcuda.so.1"}, env.libcuda.value_or(""), {"/usr/lib/wsl/lib"}, &reason);
  if (!library) return refuse("no CUDA driver: " + reason);
  auto get_address = reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t, void*)>(
      library->symbol("cuGetProcAddress_v2"));
  if (!get_address)
    return refuse(
        fmt::format("the CUDA driver at {} is older than 12.0 (no cuGetProcAddress_v2)", library->path()));
  auto table = std::make_unique<DriverTable>();
  table->library = library;
  auto resolve = [&](auto& function) {
    void* pointer = nullptr;
    if (get_address(function.name, &pointer, kDriverApiVersion, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) ==
        CUDA_SUCCESS)
      function.pointer = reinterpret_cast<decltype(function.pointer)>(pointer);
  };
#define BDCP_RESOLVE(name) resolve(table->name##_);
  BDCP_DRIVER_FUNCTIONS(BDCP_RESOLVE)
#undef BDCP_RESOLVE

  if (!table->cuInit_.pointer || !table->cuDriverGetVersion_.pointer)
    return refuse(fmt::format("{} is no CUDA driver (no cuInit)", library->path()));
  if (const CUresult result = table->cuInit_.pointer(0); result != CUDA_SUCCESS)
    return refuse(fmt::format("cuInit failed: {} (libcuda at {})", table->describe(result), library->path()));
  if (table->cuDriverGetVersion_.pointer(&table->version) != CUDA_SUCCESS || table->version < 12000)
    return refuse(fmt::format("the CUDA driver at {} supports CUDA {}; at least 12.0 is needed",
                              library->path(), version_text(table->version)));
  return table;
}

std::string DriverTable::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName_.pointer) cuGetErrorName_.pointer(result, &name);
  if (cuGetErrorString_.pointer) cuGetErrorString_.pointer(result, &text);
  return fmt::format("{} ({}): {}", name ? name : "unknown CUDA error", static_cast<int>(result),
                     text ? text : "no text");
}

void DriverTable::fail(CUresult result, const char* call, const std::string& values) const {
  ErrorCode code = ErrorCode::cuda_error;
  ErrorScope scope = ErrorScope::call;
  std::string advice;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    code = ErrorCode::out_of_memory;
  } else if (is_sticky(result)) {
    code = ErrorCode::device_lost;
    scope = ErrorScope::device;
    advice = "; the device context is unusable from now on, this process must exit";
  }
  throw Error(
      code,
      fmt::format("{} failed: {}{}{}", call, describe(result), values.empty() ? "" : "; " + values, advice),
      scope)
      .with_call(call);
}

void DriverTable::fail_missing(const char* call) const {
  throw Error(
      ErrorCode::library_missing,
      fmt::format("the CUDA driver at {} (CUDA {}) has no function {}; update the driver to CUDA {} or newer",
                  library ? library->path() : "?", version_text(version), call,
                  version_text(kDriverApiVersion)),
      ErrorScope::process)
      .with_call(call);
}

void DriverTable::fail_forked(const char* call) const {
  throw Error(
      ErrorCode::forked,
      fmt::format("CUDA was initialised in process {} and does not work in its forked child; create the "
                  "Runtime after the fork",
                  fork_guard.owner()),
      ErrorScope::process)
      .with_call(call);
}

}  // namespace bdcp::device
