// Tensor maps of a call as the Hopper kernels read through them.
#pragma once

#include "bdcp/types.h"
#include "device/device.h"
#include "kernel_templates/hopper_args.h"

namespace bdcp::attention {

/// What a tensor map can describe: 16-byte rows, strides that grow. Tensors without rows are never read.
bool fits_tma(const ConstTensorView& view);

/// Rows with `pack` heads beside each other; see HopperForwardArgs.
void encode_packed(const device::Device& device, const ConstTensorView& view, int tile, int pack,
                   kernel::TensorMap& map);
/// Rows by two coordinates that are added, the base `tile` rows early. Of a tensor without rows: `any`, which
/// is never read through.
void encode_rows(const device::Device& device, const ConstTensorView& view, int tile,
                 const kernel::TensorMap& any, kernel::TensorMap& map);
/// The same of local and remote keys, either of which may be missing; `any` if both are.
void encode_keys(const device::Device& device, const ConstTensorView& local, const ConstTensorView& remote,
                 int tile, const kernel::TensorMap& any, kernel::TensorMap& local_map,
                 kernel::TensorMap& remote_map);

}  // namespace bdcp::attention
