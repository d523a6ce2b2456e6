// KernelInfo of a compiled kernel: what users see of it.
#pragma once

#include "bdcp/runtime.h"
#include "jit/kernel_cache.h"

namespace bdcp::jit {

inline KernelInfo info_of(const CompiledKernel& kernel) {
  return {kernel.key,        kernel.spec.kernel,
          kernel.spec.arch,  kernel.compile_ms,
          kernel.registers,  kernel.spill_bytes,
          kernel.smem_bytes, kernel.origin != CompiledKernel::Origin::compiled};
}

}  // namespace bdcp::jit
