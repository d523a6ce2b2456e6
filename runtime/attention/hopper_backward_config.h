// Which tile shapes the Hopper backward takes for a call shape. Pure.
#pragma once

#include <string>

#include "attention/backend.h"
#include "jit/kernel_spec.h"

namespace bdcp::attention {

struct HopperBackwardConfig {
  int rows = 64, keys = 128;           ///< per block and per tile; 64 keys: see hopper_backward_wide.cuh
  int q_stages = 3, dout_stages = 2;   ///< blocks of Q and of dO in shared memory
  int slots = 2;                       ///< tiles in flight
  bool split = false;                  ///< long tiles may have an item per q head: hopper_backward_parts.cuh
  bool sums = true;                    ///< dQ may have sums; else all keys of a row are in one tile
  int threads() const { return 384; }  ///< two warpgroups that compute and one that moves data
};

/// `whole`: every row of the step has all its keys in one tile. The kernel may then form rowsum(dO * O) itself.
HopperBackwardConfig hopper_backward_config(const CallShape& shape, bool whole);
/// Bytes of dynamic shared memory; the kernel asserts that they suffice.
int hopper_backward_smem(const CallShape& shape, const HopperBackwardConfig& config);
/// Rows of O and dO that a warp takes at a time to form rowsum(dO * O): what fits where its dQ is passed on.
int hopper_delta_rows(const CallShape& shape, const HopperBackwardConfig& config);
/// f32 sums of dQ per block of rows and q head.
std::size_t hopper_dq_sums(const CallShape& shape, const HopperBackwardConfig& config);

/// f32 of dK and dV that an item of one q head leaves.
std::size_t hopper_part_floats(const CallShape& shape, const HopperBackwardConfig& config);

jit::KernelSpec hopper_backward_spec(const CallShape& shape, bool whole, const std::string& arch,
                                     const Options& options);
/// kernel: "hopper_backward_delta" or "hopper_backward_round".
jit::KernelSpec hopper_backward_rows_spec(const char* kernel, const CallShape& shape, const std::string& arch);

}  // namespace bdcp::attention
