// rowsum(dO * O), and LSE as exponentials take it, where every row has all its keys in one tile: formed in
// hopper_backward itself, which spares the kernel before it a pass over O and dO. Few registers, as the warps
// that load.
#pragma once

#include "hopper_backward_load.cuh"

namespace bdcp::kernel {

/// One warp, for its half of each block's rows. Rows of O and dO come through the memory in which dQ is passed
/// on elsewhere; the next ones are on their way while a block waits for its place.
template <int kWarp>
struct HopperDelta {
  using Shape = HopperBackwardShape;
  static constexpr int kRows = Config::kDeltaRows, kHalf = Config::kM / 2, kParts = kHalf / kRows;
  static constexpr int kWords = kParts == 1 ? 4 : 2;  // of O at a time: counting parts takes registers
  static constexpr int kPanel = kRows * 128, kBytes = Shape::kPanelsV * kPanel;  // of O, and as many of dO
  static_assert(Config::kSums ||
                    (kRows <= 32 && kHalf % kRows == 0 && kRows % 8 == 0 && 2 * kBytes <= Shape::kDqBytes),
                "rows of O and dO do not fit");
  const HopperBackwardArgs& args;
  int block = 0;  // of all tiles

  __device__ explicit HopperDelta(const HopperBackwardArgs& a) : args(a) {}

  __device__ void run() {
#pragma unroll 1
    for (int round = 0;; ++round) {
      const HopperBackwardSlot& slot = await_slot(round);
      if (slot.head < 0) return;
      if (parts_of(slot) > 0) form(slot);
      __syncwarp();
      asm volatile("" : "+r"(round));  // as in lane()
      if (lane() == 0)
        barrier_arrive(smem_address(&hopper_shared().slot_empty[buffer_of<Config::kSlots>(round)]));
    }
  }

 private:
  __device__ static int lane() {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));  // what follows from it is formed again, not kept
    return lane;
  }
  __device__ u32 full() const { return smem_address(&hopper_shared().o_full[kWarp]); }
  __device__ static int parts_of(const HopperBackwardSlot& slot) {
    return blocks_of(slot.tile) * slot.heads * kParts;
  }

  __device__ void form(const HopperBackwardSlot& slot) {
    HopperBackwardShared& shared = hopper_shared();
    load(slot, 0);
#pragma unroll 1
    for (int part = 0;;) {
      barrier_wait(full(), block * kParts + part % kParts & 1);
      asm volatile("" : "+r"(part));  // as in lane()
      const float delta = rows_of(slot, part).count > 0 ? sum() : 0.f;
      cp_async_wait_all();
      const float lse = shared.natural_lse[kWarp][lane()] * kLog2E;
      const int place = kWarp * kHalf + part % kParts * kRows + lane(),
                stage = buffer_of<Config::kStages>(block);
      __syncwarp();
      if (++part < parts_of(slot)) load(slot, part);
      barrier_wait(smem_address(&shared.q_empty[stage]), parity_of<Config::kStages>(block) ^ 1);
      if (kRows == 32 || lane() < kRows) {
        shared.lse[stage][place] = lse;
        shared.delta[stage][place] = delta;
      }
      if (part % kParts != 0) continue;
      __syncwarp();
      if (lane() == 0) barrier_arrive_for(smem_address(&shared.q_full[stage]), 16);
      ++block;
      if (part == parts_of(slot)) return;
    }
  }

  /// Up to kRows rows of a head; none past the tile's end.
  struct Rows {
    int head, begin, count;
  };
  __device__ Rows rows_of(const HopperBackwardSlot& slot, int part) const {
    // As HopperWalk goes: a tile has no more rows than keys, hence at most two blocks.
    static_assert(Config::kSums || Config::kN <= 2 * Config::kM);
    const int i = part / kParts;
    const bool two = Config::kN > Config::kM && blocks_of(slot.tile) == 2;
    const int second = two ? i % 2 ^ Config::kDescending : 0;
    const int begin = slot.tile.q_begin + second * Config::kM + kWarp * kHalf + part % kParts * kRows;
    return {slot.q_head + (two ? i / 2 : i), begin, max(0, min(kRows, slot.tile.q_end - begin))};
  }
  /// O, dO and LSE of a part's rows are on their way; zeros past the last one, if there is any.
  __device__ void load(const HopperBackwardSlot& slot, int part) const {
    const auto [head, begin, count] = rows_of(slot, part);
    const int lane = this->lane();
    if (lane == 0 && count == 0) barrier_arrive(full());
    if (lane == 0 && count > 0) {
      barrier_arrive_expect(full(), 2 * kBytes);
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsV; ++panel) {
        const u32 target = dq_address(kWarp) + panel * kPanel;
        tma_load_4d(target, args.out_rows, full(), kEvictFirst, panel * 64, kRows - count, begin + count, head);
        tma_load_4d(target + kBytes, args.dout_rows, full(), kEvictLast, panel * 64, kRows - count,
                    begin + count, head);
      }
    }
    cp_async_4(smem_address(&hopper_shared().natural_lse[kWarp][lane]),
               args.natural_lse + head * args.natural_lse_stride + begin + lane, lane < count);
  }
  /// Of the lane's row.
  __device__ float sum() const {
    const u32 lane = static_cast<u32>(this->lane()) % kRows;
    const u32 mine = dq_address(kWarp) + lane * 128 + lane % 8 * 16;
    float even = 0.f, odd = 0.f;
#pragma unroll 1
    for (u32 i = 0; i < Config::kDimV / 8; ++i) {
      const u32 at = (mine ^ i % 8 * 16) + i / 8 * kPanel;
#pragma unroll
      for (int word = 0; word < 4; word += kWords) {
        u32 o[kWords], d[kWords];
        load_words(o, at + word * 4);
        load_words(d, at + kBytes + word * 4);
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          float o0, o1, d0, d1;
          unpack_16<Config::kBf16>(o[j], o0, o1);
          unpack_16<Config::kBf16>(d[j], d0, d1);
          even += o0 * d0;
          odd += o1 * d1;
        }
      }
    }
    return even + odd;
  }
  __device__ static void load_words(u32 (&to)[4], u32 from) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
  /// Volatile, or the compiler joins two to one of four words.
  __device__ static void load_words(u32 (&to)[2], u32 from) {
    asm volatile("ld.volatile.shared.v2.b32 {%0,%1}, [%2];\n"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(from)
                 : "memory");
  }
};

}  // namespace bdcp::kernel
