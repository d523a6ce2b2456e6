// A libcuda for tests: records calls, keeps a stack of contexts, and fails on request. Only the functions
// listed in find() exist; `hidden` ones are not there, as in an older driver.
#include <cuda.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

struct State {
  std::vector<CUcontext> stack;           // contexts current on the (one) test thread
  std::map<std::string, CUresult> fails;  // function -> what it returns
  std::map<std::string, int> calls;
  std::string hidden;
  int retained = 0;
  int smem = 0;
  CUcontext during = nullptr;  // context current in the last call that needs one
};
State state;
CUcontext const kPrimary = reinterpret_cast<CUcontext>(0x1000);

CUresult enter(const char* name) {
  ++state.calls[name];
  state.during = state.stack.empty() ? nullptr : state.stack.back();
  const auto failing = state.fails.find(name);
  return failing == state.fails.end() ? CUDA_SUCCESS : failing->second;
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
FAKE(cuDeviceTotalMem, std::size_t* bytes, CUdevice) {
  *bytes = 1u << 30;
  return enter("cuDeviceTotalMem");
}
FAKE(cuDevicePrimaryCtxRetain, CUcontext* context, CUdevice) {
  ++state.retained;
  *context = kPrimary;
  return enter("cuDevicePrimaryCtxRetain");
}
FAKE(cuDevicePrimaryCtxRelease, CUdevice) {
  --state.retained;
  return enter("cuDevicePrimaryCtxRelease");
}
FAKE(cuCtxGetCurrent, CUcontext* context) {
  *context = state.stack.empty() ? nullptr : state.stack.back();
  return CUDA_SUCCESS;
}
FAKE(cuCtxPushCurrent, CUcontext context) {
  state.stack.push_back(context);
  return CUDA_SUCCESS;
}
FAKE(cuCtxPopCurrent, CUcontext* context) {
  *context = state.stack.back();
  state.stack.pop_back();
  return CUDA_SUCCESS;
}
FAKE(cuMemAlloc, CUdeviceptr* pointer, std::size_t) {
  *pointer = 0x2000;
  return enter("cuMemAlloc");
}
FAKE(cuMemFree, CUdeviceptr) { return enter("cuMemFree"); }
FAKE(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, std::size_t, CUstream) { return enter("cuMemcpyAsync"); }
FAKE(cuMemcpy2DAsync, const CUDA_MEMCPY2D*, CUstream) { return enter("cuMemcpy2DAsync"); }
FAKE(cuStreamSynchronize, CUstream) { return enter("cuStreamSynchronize"); }
FAKE(cuEventCreate, CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(0x3000);
  return enter("cuEventCreate");
}
FAKE(cuEventDestroy, CUevent) { return enter("cuEventDestroy"); }
FAKE(cuEventQuery, CUevent) { return enter("cuEventQuery"); }
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
  return enter("cuKernelGetFunction");
}
FAKE(cuFuncGetAttribute, int* value, CUfunction_attribute which, CUfunction) {
  *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : which == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 1024 : 0;
  return enter("cuFuncGetAttribute");
}
FAKE(cuFuncSetAttribute, CUfunction, CUfunction_attribute, int value) {
  state.smem = value;
  return enter("cuFuncSetAttribute");
}
FAKE(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
     void**, void**) {
  return enter("cuLaunchKernel");
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
  KNOWN(cuDeviceTotalMem)
  KNOWN(cuDevicePrimaryCtxRetain)
  KNOWN(cuDevicePrimaryCtxRelease)
  KNOWN(cuCtxGetCurrent)
  KNOWN(cuCtxPushCurrent)
  KNOWN(cuCtxPopCurrent)
  KNOWN(cuMemAlloc)
  KNOWN(cuMemFree)
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
extern "C" void fake_reset() { state = {}; }
extern "C" void fake_fail(const char* function, int result) {
  state.fails[function] = static_cast<CUresult>(result);
}
extern "C" void fake_hide(const char* function) { state.hidden = function; }
extern "C" int fake_calls(const char* function) { return state.calls[function]; }
extern "C" int fake_retained() { return state.retained; }
extern "C" int fake_smem() { return state.smem; }
extern "C" int fake_in_primary() { return state.during == kPrimary; }
extern "C" int fake_depth() { return static_cast<int>(state.stack.size()); }
extern "C" void fake_set_current(void* context) { state.stack.push_back(static_cast<CUcontext>(context)); }
