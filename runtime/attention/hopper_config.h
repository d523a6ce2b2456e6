// Which tile shapes the Hopper forward takes for a call shape. Pure.
#pragma once

#include "attention/backend.h"
#include "jit/kernel_spec.h"
#include "plan/tile_schedule.h"

namespace bdcp::attention {

/// What a rank's documents ask of the tiles: long ones many rows per K/V byte, short ones many loads in flight.
enum class HopperLayout { long_docs, mixed, short_docs };
inline constexpr int kHopperLayouts = 3;
HopperLayout hopper_layout(plan::LayoutClass layout_class);

struct HopperForwardConfig {
  int pack = 1;        ///< q heads side by side in the rows of a tile
  int warpgroups = 2;  ///< of 64 rows
  int keys = 128;      ///< per block
  int stages = 2;      ///< blocks of K, and of V, in shared memory
  int slots = 2;       ///< tiles of Q in shared memory
  int rows() const { return warpgroups * 64; }
  int tokens() const { return rows() / pack; }
  int threads() const { return (warpgroups + 1) * 128; }
};

HopperForwardConfig hopper_forward_config(const CallShape& shape, HopperLayout layout);
/// Bytes of dynamic shared memory; the kernel asserts that they suffice.
int hopper_forward_smem(const CallShape& shape, const HopperForwardConfig& config);
/// Of one item of a tile that is kept to be gone on with, as HopperShape::kStateFours has it.
std::size_t hopper_state_bytes(const CallShape& shape, const HopperForwardConfig& config);
/// `staged`: see hopper_stages.h.
jit::KernelSpec hopper_forward_spec(const CallShape& shape, const std::string& arch, HopperLayout layout,
                                    bool staged = false);

}  // namespace bdcp::attention
