// Tensors as the Hopper kernels read them: tensor maps and strides.
#pragma once

#include "bdcp/types.h"
#include "device/device.h"
#include "kernel_templates/hopper_args.h"

namespace bdcp::attention {

/// What a tensor map can describe: 16-byte rows, strides that grow. Tensors without rows are never read.
bool fits_tma(const ConstTensorView& view);

/// Rows by two coordinates that are added, the base `tile` rows early; see HopperForwardArgs.
device::TensorMapSpec rows_map(const ConstTensorView& view, int tile);
/// The same with `pack` heads beside each other.
device::TensorMapSpec packed_map(const ConstTensorView& view, int tile, int pack);

/// A map of the rows of `view`; where it has none, any valid one, which is never read through.
void encode_rows(const device::Device& device, const ConstTensorView& view, const ConstTensorView& other,
                 int tile, const kernel::TensorMap& any, kernel::TensorMap& map);

kernel::Tensor to_kernel(const ConstTensorView& view);

}  // namespace bdcp::attention
