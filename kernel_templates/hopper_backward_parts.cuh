// Sums of dK and dV over the q heads of a K/V head that were items of their own.
#pragma once

#include "hopper_backward_work.cuh"

namespace bdcp::kernel {

/// Where tiles and K/V heads are few, long tiles have one item per q head. Each leaves its dK and dV in memory;
/// whoever comes last adds them up in the order of the heads: the same bits whichever it is. Parts of a group
/// take the place of a group `ring` groups earlier, which stays in L2 that way. Waiting for that one cannot end
/// in a circle: its items were drawn before, and an item waits for earlier groups only.
struct HopperParts {
  using Shape = HopperBackwardShape;
  static constexpr int kThreads = 256;  // that compute
  static constexpr int kFloats = Config::kN * (Shape::kColumns + Shape::kColumnsV);

  template <int kCount>
  __device__ static void leave(const float (&acc)[kCount], float* to) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i)
      asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(to + i * 4 * kThreads), "f"(acc[4 * i]),
                   "f"(acc[4 * i + 1]), "f"(acc[4 * i + 2]), "f"(acc[4 * i + 3])
                   : "memory");
  }
  template <int kCount>
  __device__ static void sum(float (&acc)[kCount], const float* from) {
    constexpr int kAtOnce = Config::kRatio <= 8 ? Config::kRatio : 4;  // loads in flight against code size
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc[i] = 0.f;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i)
#pragma unroll kAtOnce
      for (int part = 0; part < Config::kRatio; ++part) {
        float x[4];  // past L1, which may hold what was here before
        asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "l"(from + static_cast<i64>(part) * kFloats + i * 4 * kThreads)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[4 * i + j] += x[j];
      }
  }

  /// Both warpgroups call it. False where other items of the group are not done yet; else dk and dv are those
  /// of the K/V head.
  __device__ static bool sum(const HopperBackwardArgs& args, HopperBackwardSlot& slot,
                             float (&dk)[Shape::kColumns / 2], float (&dv)[Shape::kColumnsV / 2]) {
    const int thread = threadIdx.x - 128;
    int* const count = args.part_counts + slot.group;
    float* const parts =
        args.parts + static_cast<i64>(slot.group % args.ring) * Config::kRatio * kFloats + thread * 4;
    if (thread == 0 && slot.group >= args.ring)
      while (load_acquire(count - args.ring) != Config::kRatio + 1) {
      }
    named_barrier(kBarrierVote, kThreads);
    float* const own = parts + slot.q_head % Config::kRatio * kFloats;
    leave(dk, own);
    leave(dv, own + Config::kN * Shape::kColumns);
    __threadfence();
    named_barrier(kBarrierVote, kThreads);
    if (thread == 0) {
      slot.arrived = atomicAdd(count, 1);
      __threadfence();
    }
    named_barrier(kBarrierVote, kThreads);
    if (slot.arrived != Config::kRatio - 1) return false;
    sum(dk, parts);
    sum(dv, parts + Config::kN * Shape::kColumns);
    named_barrier(kBarrierVote, kThreads);  // all have read
    if (thread == 0) store_release(count, Config::kRatio + 1);
    return true;
  }
};

}  // namespace bdcp::kernel
