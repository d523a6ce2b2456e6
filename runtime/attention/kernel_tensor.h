// A call's tensor as kernels take it. Pure.
#pragma once

#include "attention/backend.h"
#include "kernel_templates/kernel_args.h"

namespace bdcp::attention {

/// Kernels write through the pointers of outputs only.
inline kernel::Tensor to_kernel(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.token_stride, view.head_stride};
}

}  // namespace bdcp::attention
