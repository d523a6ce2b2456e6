// The reference kernels compiled for the CPU (see emulation.h), one set per configuration.
#pragma once

#include "bdcp/types.h"

namespace bdcp::test {

struct EmulatedKernels {
  DType dtype;
  int head_dim, head_dim_v, ratio;
  bool dropout;
  DType payload;
  /// Each takes the kernel's arguments struct.
  void (*forward)(const void*);
  void (*dq)(const void*);
  void (*dkv)(const void*);
};

const EmulatedKernels& emulated_narrow();   ///< f32 40,24 ratio 3
const EmulatedKernels& emulated_half();     ///< f16 136,72 ratio 2, payload f16
const EmulatedKernels& emulated_bf16();     ///< bf16 64,64 ratio 1
const EmulatedKernels& emulated_dropout();  ///< f32 17,33 ratio 2, dropout
const EmulatedKernels& emulated_wide();     ///< f32 400,392 ratio 1: dK and dV one after the other

}  // namespace bdcp::test
