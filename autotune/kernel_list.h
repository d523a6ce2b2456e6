// Which kernels a set of attention shapes needs, over all backends and the exchange.
#pragma once

#include <string>
#include <vector>

#include "bdcp/policy.h"
#include "bdcp/types.h"
#include "jit/kernel_spec.h"

namespace bdcp::autotune {

/// Every kernel any layout of these shapes may ask for on `arch` under `policy`, at world size 1 and above,
/// whichever of its `groups` match and whatever exchange.grad_payload is; without repetition, in a fixed order.
/// Throws Error(unsupported) for a shape that no CUDA backend takes.
std::vector<jit::KernelSpec> kernel_list(const std::vector<CallShape>& shapes, const std::string& arch,
                                         const Policy& policy = {});

}  // namespace bdcp::autotune
