// What the parts of hopper_backward agree on: sizes, and the layout of shared memory. Needs Config.
#pragma once

#include "hopper_backward_store.cuh"
#include "hopper_common.cuh"

namespace bdcp::kernel {

struct HopperBackwardShape {
  static constexpr int kM = Config::kM, kN = Config::kN;
  static constexpr int kThreads = 384;  // two warpgroups compute
  static constexpr int kSteps = (Config::kDim + 15) / 16, kStepsV = (Config::kDimV + 15) / 16;  // of k16
  static constexpr int kColumns = kSteps * 16, kColumnsV = kStepsV * 16;                        // of dK and dV
  // Panels of 64 columns: what one 128-byte row holds.
  static constexpr int kPanels = (Config::kDim + 63) / 64, kPanelsV = (Config::kDimV + 63) / 64;
  static constexpr int kPanelM = kM * 128, kPanelN = kN * 128;
  static constexpr int kBytesK = kPanels * kPanelN, kBytesV = kPanelsV * kPanelN;
  static constexpr int kBytesQ = kPanels * kPanelM, kBytesDo = kPanelsV * kPanelM;
  static constexpr int kBytesDs = kM / 64 * kPanelN;  // [key][row], panels of 64 rows
  static constexpr bool kWide = HopperDqShape::kWide;
  static constexpr bool kSplitRows = HopperDqShape::kSplitRows;
  static constexpr int kDqColumns = HopperDqShape::kColumns, kDqBytes = HopperDqShape::kFloats * 4;
  // dQ of both warpgroups on its way to the sums; of wide heads, whose dQ goes another way, P on its way to the
  // other warpgroup; without sums, O and dO of HopperDelta.
  static constexpr int kBytesPassed = kWide ? kN * kM * 2 : 2 * kDqBytes;
  static constexpr int kProducerRegisters = kWide ? 40 : 24, kConsumerRegisters = kWide ? 232 : 240;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * 3,
                "more registers than there are: the kernel would wait for them for ever");
  static_assert(kWide ? kM == 64 && kN == 64 && Config::kDim <= 256 && Config::kDimV <= 256
                      : kN == 128 && (kM == 64 || kM == 128) && Config::kDim <= (kSplitRows ? 64 : 128) &&
                            Config::kDimV <= 128,
                "tile does not split into wgmma shapes");
  static_assert(Config::kSums || !kWide, "wide heads have no room for rows of O");
};

struct HopperBackwardSlot {
  HopperKeyRows keys[Config::kN];  // where several documents share the tile
  HopperKeyTile tile;
  Segment one;  // else the document
  int head;     // of K and V; negative: no more tiles
  int q_head;   // the first of `heads`
  int heads;    // all of the K/V head, or one of a group
  int group;    // negative: all
  int arrived;  // parts before this one
  int phase;    // of the barriers of K and V
  int skipped;  // blocks before this tile whose dQ was complete: the others went through dq_full
  int again;    // documents of this tile must be done again one by one
};

/// A tile whose documents are done again one by one.
struct HopperAgain {
  int seg_begin, seg_end, head;
};

/// Behind the buffers.
struct HopperBackwardShared {
  alignas(16) HopperBackwardSlot slots[Config::kSlots];
  alignas(16) float lse[Config::kStages][Config::kM];
  float delta[Config::kStages][Config::kM];
  float natural_lse[2][32];  // on its way, by warp of HopperDelta
  u64 tile_full[Config::kSlots], slot_empty[Config::kSlots];
  u64 k_full, k_empty, v_full, v_empty;
  u64 near_end;  // of the latest tile
  u64 q_full[Config::kStages], q_empty[Config::kStages];
  u64 do_full[Config::kStagesDo], do_empty[Config::kStagesDo];
  u64 ds_full[2], ds_empty[2];  // by buffer
  u64 dq_full[2], dq_empty[2];  // by warpgroup
  u64 o_full[2];                // by warp of HopperDelta
  u64 meeting;                  // of the warpgroups of wide heads
  HopperAgain again[Config::kSlots];
  int again_count;
  int skipped;  // as in the slots; these three are the loading warp's alone
  int item_count;
};

/// K, V, the Q buffers, the dO buffers, two of dS, kBytesPassed, HopperBackwardShared.
__device__ inline char* hopper_shared_memory() {
  extern __shared__ __align__(1024) char bdcp_hopper_shared[];
  return bdcp_hopper_shared;
}
__device__ inline u32 k_address() { return smem_address(hopper_shared_memory()); }
__device__ inline u32 v_address() { return k_address() + HopperBackwardShape::kBytesK; }
__device__ inline u32 q_address(int stage) {
  return v_address() + HopperBackwardShape::kBytesV + stage * HopperBackwardShape::kBytesQ;
}
__device__ inline u32 do_address(int stage) {
  return q_address(Config::kStages) + stage * HopperBackwardShape::kBytesDo;
}
__device__ inline u32 ds_address(int buffer) {
  return do_address(Config::kStagesDo) + buffer * HopperBackwardShape::kBytesDs;
}
__device__ inline u32 dq_address(int warpgroup) {
  return ds_address(2) + warpgroup * HopperBackwardShape::kDqBytes;
}
constexpr int kHopperBackwardBuffers = HopperBackwardShape::kBytesK + HopperBackwardShape::kBytesV +
                                       Config::kStages * HopperBackwardShape::kBytesQ +
                                       Config::kStagesDo * HopperBackwardShape::kBytesDo +
                                       2 * HopperBackwardShape::kBytesDs + HopperBackwardShape::kBytesPassed;
__device__ inline HopperBackwardShared& hopper_shared() {
  return *reinterpret_cast<HopperBackwardShared*>(hopper_shared_memory() + kHopperBackwardBuffers);
}
static_assert(kHopperBackwardBuffers + sizeof(HopperBackwardShared) <= Config::kSmem,
              "the host asks for less shared memory than the kernel lays out");

/// The slot of a round's tile, once the tile is named; its head is negative after the last one.
__device__ inline const HopperBackwardSlot& await_slot(int round) {
  HopperBackwardShared& shared = hopper_shared();
  const int buffer = buffer_of<Config::kSlots>(round);
  barrier_wait(smem_address(&shared.tile_full[buffer]), parity_of<Config::kSlots>(round));
  return shared.slots[buffer];
}
__device__ inline int blocks_of(const HopperKeyTile& tile) {
  return (tile.q_end - tile.q_begin + Config::kM - 1) / Config::kM;
}

}  // namespace bdcp::kernel
