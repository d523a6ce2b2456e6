// What the parts of hopper_forward agree on: sizes, and the layout of shared memory. Needs Config.
#pragma once

#include "hopper_common.cuh"

namespace bdcp::kernel {

struct HopperShape {
  static constexpr int kM = 64 * Config::kWgs, kN = Config::kN;
  static constexpr int kThreads = 128 * (Config::kWgs + 1);
  static constexpr int kSteps = (Config::kDim + 15) / 16;          // k16 steps of Q * K
  static constexpr int kColumns = (Config::kDimV + 15) / 16 * 16;  // of O
  // Panels of 64 columns: what one 128-byte row holds.
  static constexpr int kPanels = (Config::kDim + 63) / 64, kPanelsV = (Config::kDimV + 63) / 64;
  // What a thread keeps of a tile that is to be gone on with: O, then maxima and sums of its two rows.
  static constexpr int kStateFours = kColumns / 8 + 1;
  static constexpr int kPanelQ = kM * 128, kPanelK = kN * 128;
  static constexpr int kBytesQ = kPanels * Config::kTokens * Config::kPack * 128;
  static constexpr int kSlotBytes = (kPanels > kPanelsV ? kPanels : kPanelsV) * kPanelQ;
  static constexpr int kBytesK = kPanels * kPanelK, kBytesV = kPanelsV * kPanelK;
  static constexpr int kProducerRegisters = Config::kWgs == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = Config::kWgs == 3 ? 160 : Config::kWgs == 2 ? 232 : 216;
  static constexpr int kEntryRegisters = 65536 / (kThreads * Config::kCtas) / 8 * 8;
  static_assert(kProducerRegisters + Config::kWgs * kConsumerRegisters <= kEntryRegisters * (Config::kWgs + 1),
                "more registers than there are: the kernel would wait for them for ever");
  static_assert(kN % 16 == 0 && Config::kTokens * Config::kPack <= kM, "tile does not split into wgmma shapes");
};

struct HopperSlot {
  HopperTile tile;
  int group;  // negative: no more tiles
};

/// Behind the buffers.
struct HopperShared {
  alignas(16) HopperSlot slots[Config::kSlots];
  u64 tile_full[Config::kSlots], q_full[Config::kSlots], o_full[Config::kSlots], slot_empty[Config::kSlots];
  u64 k_full[Config::kStages], k_empty[Config::kStages], v_full[Config::kStages], v_empty[Config::kStages];
  int item_count;
};

static_assert(Config::kSlots * HopperShape::kSlotBytes +
                      Config::kStages * (HopperShape::kBytesK + HopperShape::kBytesV) + sizeof(HopperShared) <=
                  Config::kSmem,
              "the host asks for less shared memory than the kernel lays out");

__device__ inline char* hopper_shared_memory() {
  extern __shared__ __align__(1024) char bdcp_hopper_shared[];
  return bdcp_hopper_shared;
}
__device__ inline u32 q_address(int slot) {
  return smem_address(hopper_shared_memory()) + slot * HopperShape::kSlotBytes;
}
__device__ inline u32 k_address(int stage) { return q_address(Config::kSlots) + stage * HopperShape::kBytesK; }
__device__ inline u32 v_address(int stage) { return k_address(Config::kStages) + stage * HopperShape::kBytesV; }
__device__ inline HopperShared& hopper_shared() {
  return *reinterpret_cast<HopperShared*>(hopper_shared_memory() + Config::kSlots * HopperShape::kSlotBytes +
                                          Config::kStages * (HopperShape::kBytesK + HopperShape::kBytesV));
}
__device__ inline int blocks_of(const HopperTile& tile) {
  return static_cast<int>((static_cast<u32>(tile.k_end - tile.k_begin) + Config::kN - 1) / Config::kN);
}

}  // namespace bdcp::kernel
