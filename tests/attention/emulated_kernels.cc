// Compiled once per configuration: EMULATED_NAME, EMULATED_DTYPE (0 f32, 1 f16, 2 bf16), EMULATED_DIM,
// EMULATED_DIM_V, EMULATED_RATIO, EMULATED_DROPOUT, EMULATED_PAYLOAD.
#include "attention/emulated_kernels.h"

#include "attention/emulation.h"

#define EMULATED_JOIN2(a, b) a##b
#define EMULATED_JOIN(a, b) EMULATED_JOIN2(a, b)
// A namespace and kernel names of its own, so that configurations do not meet in the linker.
#define kernel EMULATED_JOIN(kernel_, EMULATED_NAME)
#define reference_forward EMULATED_JOIN(reference_forward_, EMULATED_NAME)
#define reference_backward_dq EMULATED_JOIN(reference_backward_dq_, EMULATED_NAME)
#define reference_backward_dkv EMULATED_JOIN(reference_backward_dkv_, EMULATED_NAME)

namespace bdcp::kernel {
struct Config {
  static constexpr int dtype = EMULATED_DTYPE, head_dim = EMULATED_DIM, head_dim_v = EMULATED_DIM_V,
                       ratio = EMULATED_RATIO, payload = EMULATED_PAYLOAD;
  static constexpr bool dropout = EMULATED_DROPOUT;
};
}  // namespace bdcp::kernel

#pragma GCC diagnostic ignored "-Wunknown-pragmas"
// clang-format off
#include "kernel_templates/reference_forward.cuh"
#include "kernel_templates/reference_backward_dq.cuh"
#include "kernel_templates/reference_backward_dkv.cuh"
// clang-format on

namespace bdcp::test {

const EmulatedKernels& EMULATED_JOIN(emulated_, EMULATED_NAME)() {
  static constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  static const EmulatedKernels kernels{
      dtypes[EMULATED_DTYPE],
      EMULATED_DIM,
      EMULATED_DIM_V,
      EMULATED_RATIO,
      EMULATED_DROPOUT,
      dtypes[EMULATED_PAYLOAD],
      [](const void* args) { reference_forward(*static_cast<const kernel::ReferenceForwardArgs*>(args)); },
      [](const void* args) { reference_backward_dq(*static_cast<const kernel::ReferenceBackwardArgs*>(args)); },
      [](const void* args) {
        reference_backward_dkv(*static_cast<const kernel::ReferenceBackwardArgs*>(args));
      }};
  return kernels;
}

}  // namespace bdcp::test
