// A libcuda for tests: records calls, keeps a stack of contexts, and fails on request. Only the functions
// listed in find() exist; `hidden` ones are not there, as in an older driver.
#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

/// Grid of a launch, and the first bytes of its argument: as many as every attention kernel has.
struct FakeLaunch {
  unsigned grid_x, grid_y;
  std::array<unsigned char, 160> args;
};

struct State {
  std::map<std::string, CUresult> fails;  // function -> what it returns
  std::map<std::string, int> calls;
  std::string hidden;
  bool one_gpu = false;  // all devices are
  int retained = 0;
  CUdeviceptr next_address = 0x2000;
  std::uintptr_t next_stream = 0;
  bool capturing = false;  // every stream, in global mode
  CUstream copied_on = nullptr;
  CUdeviceptr copied_to = 0;
  bool keep_launches = false;
  std::vector<FakeLaunch> launches;
  int smem = 0;
  bool early = false;  // the last launch need not wait for the kernel before it
  std::uintptr_t next_event = 0x3000;
  std::set<CUevent> unfinished;  // recorded while their thread held events
  CUcontext during = nullptr;    // context current in the last call that needs one
};
State state;
/// Without a destructor: threads that outlive their tests end in no order.
struct Contexts {
  std::array<CUcontext, 64> values{};
  std::size_t count = 0;
  bool empty() const { return count == 0; }
  std::size_t size() const { return count; }
  CUcontext back() const { return values[count - 1]; }
  void push_back(CUcontext value) { values[count++] = value; }
  void pop_back() { --count; }
  void clear() { count = 0; }
};
std::recursive_mutex mutex;      // benchmarks call from several threads
thread_local bool hold = false;  // events that this thread records now do not come about
thread_local Contexts stack;     // contexts current on the thread
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
CUcontext const kPrimary = reinterpret_cast<CUcontext>(0x1000);

CUresult enter(const char* name) {
  const std::lock_guard lock(mutex);
  ++state.calls[name];
  state.during = stack.empty() ? nullptr : stack.back();
  const auto failing = state.fails.find(name);
  return failing == state.fails.end() ? CUDA_SUCCESS : failing->second;
}
// For functions that the driver refuses on a thread without a current context.
CUresult enter_context(const char* name) {
  const CUresult result = enter(name);
  return stack.empty() ? CUDA_ERROR_INVALID_CONTEXT : result;
}
// For functions that end a capture unless the thread has relaxed its mode.
CUresult unless_capturing(CUresult result) {
  return state.capturing && mode != CU_STREAM_CAPTURE_MODE_RELAXED ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                                   : result;
}
// Does nothing and succeeds, with as many pointer-sized arguments as the caller passes.
#define FAKE(name, ...) CUresult fake_##name(__VA_ARGS__)

FAKE(cuInit, unsigned) { return enter("cuInit"); }
FAKE(cuDriverGetVersion, int* version) {
  *version = 12080;
  return enter("cuDriverGetVersion");
}
FAKE(cuGetErrorName, CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
FAKE(cuGetErrorString, CUresult, const char** text) {
  *text = "a fake failure";
  return CUDA_SUCCESS;
}
FAKE(cuDeviceGetCount, int* count) {
  *count = 2;
  return enter("cuDeviceGetCount");
}
FAKE(cuDeviceGet, CUdevice* device, int ordinal) {
  *device = ordinal;
  return enter("cuDeviceGet");
}
FAKE(cuDeviceGetName, char* name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return enter("cuDeviceGetName");
}
FAKE(cuDeviceGetAttribute, int* value, CUdevice_attribute which, CUdevice device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = device == 0 ? 9 : 8;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = device == 0 ? 0 : 6;
      break;
    default:
      *value = 1000 + static_cast<int>(which);
  }
  return enter("cuDeviceGetAttribute");
}
FAKE(cuDeviceGetUuid, CUuuid* uuid, CUdevice device) {
  for (std::size_t i = 0; i < sizeof uuid->bytes; ++i)
    uuid->bytes[i] = static_cast<char>(0xa0 + i + (state.one_gpu ? 0 : 16 * static_cast<unsigned>(device)));
  return enter("cuDeviceGetUuid");
}
FAKE(cuDeviceTotalMem, std::size_t* bytes, CUdevice) {
  *bytes = 1u << 30;
  return enter("cuDeviceTotalMem");
}
FAKE(cuDevicePrimaryCtxRetain, CUcontext* context, CUdevice) {
  const std::lock_guard lock(mutex);
  ++state.retained;
  *context = kPrimary;
  return enter("cuDevicePrimaryCtxRetain");
}
FAKE(cuDevicePrimaryCtxRelease, CUdevice) {
  const std::lock_guard lock(mutex);
  --state.retained;
  return enter("cuDevicePrimaryCtxRelease");
}
FAKE(cuCtxGetCurrent, CUcontext* context) {
  *context = stack.empty() ? nullptr : stack.back();
  return CUDA_SUCCESS;
}
FAKE(cuCtxPushCurrent, CUcontext context) {
  {
    const std::lock_guard lock(mutex);
    ++state.calls["cuCtxPushCurrent"];
  }
  stack.push_back(context);
  return CUDA_SUCCESS;
}
FAKE(cuCtxPopCurrent, CUcontext* context) {
  *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}
FAKE(cuCtxGetStreamPriorityRange, int* least, int* greatest) {
  *least = *greatest = 0;
  return enter_context("cuCtxGetStreamPriorityRange");
}
FAKE(cuMemAlloc, CUdeviceptr* pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  *pointer = state.next_address;  // distinct, and never read
  state.next_address += (bytes + 511) / 256 * 256;
  return unless_capturing(enter_context("cuMemAlloc"));
}
FAKE(cuMemFree, CUdeviceptr) { return unless_capturing(enter("cuMemFree")); }
FAKE(cuMemHostAlloc, void** pointer, std::size_t bytes, unsigned) {
  *pointer = std::malloc(bytes);
  return unless_capturing(enter_context("cuMemHostAlloc"));
}
FAKE(cuMemFreeHost, void* pointer) {
  std::free(pointer);
  return unless_capturing(enter("cuMemFreeHost"));
}
FAKE(cuMemsetD8Async, CUdeviceptr, unsigned char, std::size_t, CUstream) {
  return enter_context("cuMemsetD8Async");
}
FAKE(cuStreamCreateWithPriority, CUstream* stream, unsigned, int) {
  const std::lock_guard lock(mutex);
  *stream = reinterpret_cast<CUstream>(++state.next_stream * 0x100);
  return enter_context("cuStreamCreateWithPriority");
}
FAKE(cuStreamDestroy, CUstream) { return enter("cuStreamDestroy"); }
FAKE(cuStreamGetId, CUstream stream, unsigned long long* id) {
  *id = reinterpret_cast<std::uintptr_t>(stream);
  const CUresult result = enter("cuStreamGetId");
  return state.capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : result;  // as driver 580 does
}
FAKE(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus* status) {
  *status = state.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return enter("cuStreamIsCapturing");
}
FAKE(cuStreamWaitEvent, CUstream, CUevent, unsigned) {
  const CUresult result = enter_context("cuStreamWaitEvent");
  return state.capturing ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : result;  // no event here is of the capture
}
FAKE(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode* other) {
  std::swap(mode, *other);
  return enter("cuThreadExchangeStreamCaptureMode");
}
FAKE(cuEventRecord, CUevent event, CUstream) {
  const std::lock_guard lock(mutex);
  state.unfinished.erase(event);
  if (hold) state.unfinished.insert(event);
  return enter_context("cuEventRecord");
}
FAKE(cuEventSynchronize, CUevent) { return unless_capturing(enter("cuEventSynchronize")); }
FAKE(cuEventElapsedTime, float* ms, CUevent, CUevent) {
  *ms = 1;
  return enter("cuEventElapsedTime");
}
FAKE(cuMemcpyAsync, CUdeviceptr to, CUdeviceptr, std::size_t, CUstream stream) {
  const std::lock_guard lock(mutex);
  state.copied_on = stream;
  state.copied_to = to;
  return enter_context("cuMemcpyAsync");
}
FAKE(cuMemcpy2DAsync, const CUDA_MEMCPY2D*, CUstream) { return enter_context("cuMemcpy2DAsync"); }
FAKE(cuStreamSynchronize, CUstream) { return unless_capturing(enter_context("cuStreamSynchronize")); }
FAKE(cuEventCreate, CUevent* event, unsigned) {
  const std::lock_guard lock(mutex);
  *event = reinterpret_cast<CUevent>(state.next_event += 0x10);
  return enter_context("cuEventCreate");
}
FAKE(cuEventDestroy, CUevent) { return enter("cuEventDestroy"); }
FAKE(cuEventQuery, CUevent event) {
  const std::lock_guard lock(mutex);
  const CUresult result = unless_capturing(enter("cuEventQuery"));
  return result == CUDA_SUCCESS && state.unfinished.count(event) ? CUDA_ERROR_NOT_READY : result;
}
FAKE(cuLibraryLoadData, CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*,
     void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(0x4000);
  return enter("cuLibraryLoadData");
}
FAKE(cuLibraryUnload, CUlibrary) { return enter("cuLibraryUnload"); }
FAKE(cuLibraryGetKernel, CUkernel* kernel, CUlibrary, const char*) {
  *kernel = reinterpret_cast<CUkernel>(0x5000);
  return enter("cuLibraryGetKernel");
}
FAKE(cuKernelGetFunction, CUfunction* function, CUkernel) {
  *function = reinterpret_cast<CUfunction>(0x6000);
  return enter_context("cuKernelGetFunction");
}
FAKE(cuFuncGetAttribute, int* value, CUfunction_attribute which, CUfunction) {
  *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : which == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 1024 : 0;
  return enter_context("cuFuncGetAttribute");
}
FAKE(cuFuncLoad, CUfunction) { return enter_context("cuFuncLoad"); }
FAKE(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int value) {
  state.smem = value;
  return enter_context("cuFuncSetAttribute");
}
void keep_launch(unsigned x, unsigned y, void** args) {
  const std::lock_guard lock(mutex);
  if (!state.keep_launches) return;
  FakeLaunch& launch = state.launches.emplace_back(FakeLaunch{x, y, {}});
  std::memcpy(launch.args.data(), args[0], launch.args.size());
}
FAKE(cuLaunchKernel, CUfunction, unsigned x, unsigned y, unsigned, unsigned, unsigned, unsigned, unsigned,
     CUstream, void** args, void**) {
  keep_launch(x, y, args);
  return enter_context("cuLaunchKernel");
}
FAKE(cuTensorMapEncodeTiled, CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
     const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
     CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return enter_context("cuTensorMapEncodeTiled");
}

FAKE(cuLaunchKernelEx, const CUlaunchConfig* config, CUfunction, void** args, void**) {
  keep_launch(config->gridDimX, config->gridDimY, args);
  state.early =
      config->numAttrs == 1 && config->attrs[0].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  return enter_context("cuLaunchKernelEx");
}

void* find(const std::string& name) {
#define KNOWN(known) \
  if (name == #known) return reinterpret_cast<void*>(&fake_##known);
  KNOWN(cuInit)
  KNOWN(cuDriverGetVersion)
  KNOWN(cuGetErrorName)
  KNOWN(cuGetErrorString)
  KNOWN(cuDeviceGetCount)
  KNOWN(cuDeviceGet)
  KNOWN(cuDeviceGetName)
  KNOWN(cuDeviceGetAttribute)
  KNOWN(cuDeviceGetUuid)
  KNOWN(cuDeviceTotalMem)
  KNOWN(cuDevicePrimaryCtxRetain)
  KNOWN(cuDevicePrimaryCtxRelease)
  KNOWN(cuCtxGetCurrent)
  KNOWN(cuCtxPushCurrent)
  KNOWN(cuCtxPopCurrent)
  KNOWN(cuMemAlloc)
  KNOWN(cuMemFree)
  KNOWN(cuMemHostAlloc)
  KNOWN(cuMemFreeHost)
  KNOWN(cuMemsetD8Async)
  KNOWN(cuCtxGetStreamPriorityRange)
  KNOWN(cuStreamCreateWithPriority)
  KNOWN(cuStreamDestroy)
  KNOWN(cuStreamGetId)
  KNOWN(cuStreamIsCapturing)
  KNOWN(cuThreadExchangeStreamCaptureMode)
  KNOWN(cuStreamWaitEvent)
  KNOWN(cuEventRecord)
  KNOWN(cuEventSynchronize)
  KNOWN(cuEventElapsedTime)
  KNOWN(cuFuncLoad)
  KNOWN(cuMemcpyAsync)
  KNOWN(cuMemcpy2DAsync)
  KNOWN(cuStreamSynchronize)
  KNOWN(cuEventCreate)
  KNOWN(cuEventDestroy)
  KNOWN(cuEventQuery)
  KNOWN(cuLibraryLoadData)
  KNOWN(cuLibraryUnload)
  KNOWN(cuLibraryGetKernel)
  KNOWN(cuKernelGetFunction)
  KNOWN(cuFuncGetAttribute)
  KNOWN(cuFuncSetAttribute)
  KNOWN(cuLaunchKernel)
  KNOWN(cuTensorMapEncodeTiled)
  KNOWN(cuLaunchKernelEx)
  return nullptr;
}

}  // namespace

// What a driver exports. (cuda.h would rename the function; the library looks for this name.)
extern "C" CUresult fake_get_proc_address(const char* name, void** function, int version, cuuint64_t,
                                          void*) __asm__("cuGetProcAddress_v2");
extern "C" CUresult fake_get_proc_address(const char* name, void** function, int version, cuuint64_t, void*) {
  *function = version == 12040 && name != state.hidden ? find(name) : nullptr;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// For the tests.
extern "C" void fake_reset() {
  const std::lock_guard lock(mutex);
  state = {};
  stack.clear();
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}
extern "C" void fake_fail(const char* function, int result) {
  const std::lock_guard lock(mutex);
  state.fails[function] = static_cast<CUresult>(result);
}
extern "C" void fake_hide(const char* function) { state.hidden = function; }
/// All devices say that they are the same GPU, as those of several processes may be.
extern "C" void fake_one_gpu() { state.one_gpu = true; }
extern "C" void fake_hold_events(int on) { hold = on != 0; }
extern "C" void fake_finish_events() {
  const std::lock_guard lock(mutex);
  state.unfinished.clear();
}
extern "C" void fake_capture(int on) { state.capturing = on != 0; }
extern "C" void* fake_copied_on() { return state.copied_on; }
extern "C" void* fake_copied_to() { return reinterpret_cast<void*>(state.copied_to); }
/// Forgets what was launched, and remembers what will be.
extern "C" void fake_keep_launches() {
  state.keep_launches = true;
  state.launches.clear();
}
/// How many launches are remembered if their second half is the same as the first, else -1.
extern "C" int fake_launched_twice() {
  const auto& all = state.launches;
  const std::size_t half = all.size() / 2;
  for (std::size_t i = 0; i < half; ++i)
    if (all[i].grid_x != all[half + i].grid_x || all[i].grid_y != all[half + i].grid_y ||
        all[i].args != all[half + i].args)
      return -1;
  return static_cast<int>(all.size());
}
extern "C" int fake_calls(const char* function) {
  const std::lock_guard lock(mutex);
  return state.calls[function];
}
extern "C" int fake_retained() { return state.retained; }
extern "C" int fake_smem() { return state.smem; }
extern "C" int fake_early() { return state.early; }
extern "C" int fake_in_primary() { return state.during == kPrimary; }
extern "C" int fake_depth() { return static_cast<int>(stack.size()); }
extern "C" void fake_set_current(void* context) { stack.push_back(static_cast<CUcontext>(context)); }
