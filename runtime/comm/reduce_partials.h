// Summing dK/dV partials into the owner's gradients: own contribution first, then ranks in ascending order, in
// f32, rounded once. Host function and CUDA launch give the same bits.
#pragma once

#include <cstddef>
#include <string>

#include "bdcp/types.h"
#include "device/device.h"
#include "jit/kernel_spec.h"

namespace bdcp::comm {

/// One of dK and dV. Everything but `out` is packed [out.tokens, out.heads, out.dim].
struct PartialSum {
  const float* own = nullptr;
  const std::byte* partials = nullptr;  ///< first contribution; 16-byte aligned
  std::size_t stride = 0;               ///< bytes between contributions; a multiple of 16
  DType payload = DType::f32;           ///< of the contributions
  int contributions = 0;
  TensorView out;
};

void sum_on_host(const PartialSum& sum);

jit::KernelSpec reduce_spec(DType dtype, DType payload, const std::string& arch);
/// One launch for both; `kernel` was made from reduce_spec of their types.
void sum_on_device(device::Device& device, const device::LoadedKernel& kernel, const PartialSum& dk,
                   const PartialSum& dv, void* stream);

}  // namespace bdcp::comm
