// The threads of hopper_backward that add dQ to its sums in memory. Few registers, as the warps that load.
#pragma once

#include "hopper_backward_load.cuh"

namespace bdcp::kernel {

/// One warpgroup's: adds its dQ to the sums, block by block.
///
/// Nothing has zeroed them: whoever comes first at a block claims it and stores, at once and without waiting
/// for anything else; others wait until that is done. Where the order of adds is to be the same on every run,
/// the tiles of a document take turns instead: of all CTAs, the one that drew the earliest item that is not
/// finished never waits here, since it waits for earlier items only, and only CTAs that run draw items.
///
/// An add is issued after the value was read that allows it, and a store announced after it is complete, which
/// ends its asynchronous part too (PTX ISA, async proxy).
struct HopperAdder {
  using Shape = HopperBackwardShape;
  const HopperBackwardArgs& args;
  const int warpgroup;
  int used = 0;  // blocks

  __device__ HopperAdder(const HopperBackwardArgs& a, int which) : args(a), warpgroup(which) {}

  __device__ void run() {
#pragma unroll 1
    for (int round = 0;; ++round) {
      const HopperBackwardSlot& slot = await_slot(round);
      if (slot.head < 0) return;
      // The tile is read from shared memory where it is needed, to save registers.
      const bool none = Shape::kWide || slot.tile.sum_block < 0;
      HopperWalk walk(none ? 0 : blocks_of(slot.tile), slot.tile.start, slot.q_head, slot.heads);
      u32 place = place_of(slot, walk);
      int before = walk.left > 0 ? load_relaxed(args.added + place) : 0;
#pragma unroll 1
      while (walk.left > 0) {
        const bool first = claim(place, slot.tile.index, before);
        const u32 current = place;
        walk.next(blocks_of(slot.tile));
        if (walk.left > 0) {
          place = place_of(slot, walk);
          before = load_relaxed(args.added + place);  // arrives while this block is sent
        }
        send(current, slot.tile.index, first);
        ++used;
      }
      barrier_arrive(smem_address(&hopper_shared().slot_empty[buffer_of<Config::kSlots>(round)]));
    }
  }

 private:
  /// Below 2^32: there are fewer than 2^30 tiles and heads, and at most two blocks per tile.
  __device__ u32 place_of(const HopperBackwardSlot& slot, const HopperWalk& walk) const {
    return (static_cast<u32>(slot.tile.sum_block + walk.block) * args.heads_q + walk.head) * 2 + warpgroup;
  }
  /// Waits for dQ, and until it may be added; whether it is the first. `index`: of the tile in its document.
  /// `before`: who has added, as it was a while ago.
  __device__ bool claim(u32 place, int index, int before) const {
    int* const added = args.added + place;
    if constexpr (Config::kOrdered)
      while (before != index) before = load_relaxed(added);
    barrier_wait(smem_address(&hopper_shared().dq_full[warpgroup]), used & 1);
    fence_async_proxy();  // for the writers: it orders all that the barrier ordered before it
    if constexpr (!Config::kOrdered) {
      if (before == 0) before = exchange_if(added, 0, kHopperClaimed);
      while (before == kHopperClaimed) before = load_relaxed(added);
    }
    return before == 0;
  }
  __device__ void send(u32 place, int index, bool first) const {
    float* const target = args.dq_sum + static_cast<u64>(place) * HopperDqShape::kFloats;
    if (first)
      bulk_store(target, dq_address(warpgroup), Shape::kDqBytes);
    else
      bulk_add(target, dq_address(warpgroup), Shape::kDqBytes);
    tma_store_commit();
    tma_store_wait_read();
    barrier_arrive(smem_address(&hopper_shared().dq_empty[warpgroup]));
    if (Config::kOrdered || first) {
      bulk_wait();
      store_release(args.added + place, Config::kOrdered ? index + 1 : kHopperStored);
    }
  }
};

}  // namespace bdcp::kernel
