// The warpgroups of hopper_backward that compute, for heads too wide for HopperKeyConsumer: both have all 64
// keys of the tile. One forms S and P and keeps dV, the other forms dP and dS and keeps dK; P and dS pass
// through shared memory. Both take panels of dQ = dS^T * K in turn, which are added to the sums straight from
// registers.
#pragma once

#include "hopper_backward_work.cuh"

namespace bdcp::kernel {

/// Named barriers: P is there; one warpgroup's turn to add has come, and all of it has added.
constexpr int kBarrierP = 3, kBarrierTurn = 4;

/// Adds to four neighbouring floats.
__device__ inline void add_four(float* to, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

struct HopperWideConsumer : HopperKeyWork {
  using HopperKeyWork::HopperKeyWork;

  __device__ static u32 q_rows(int use) { return q_address(buffer_of<Config::kStages>(use)); }
  __device__ static u32 do_rows(int use) { return do_address(buffer_of<Config::kStagesDo>(use)); }

  /// P between the warpgroups, as a thread of either holds it.
  __device__ static u32 p_address() { return dq_address(0) + threadIdx.x % 128 * 16; }
  __device__ static void send(const u32 (&p)[kM / 4]) {
#pragma unroll
    for (int i = 0; i < kM / 16; ++i)
      asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(p_address() + i * 2048), "r"(p[4 * i]),
                   "r"(p[4 * i + 1]), "r"(p[4 * i + 2]), "r"(p[4 * i + 3])
                   : "memory");
    named_barrier_arrive(kBarrierP, 256);
  }
  /// dp becomes dS / scale, with P as it arrives.
  __device__ void receive_gradients(float (&dp)[kM / 2]) const {
    named_barrier(kBarrierP, 256);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      u32 p[4];
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3])
                   : "r"(p_address() + i * 2048)
                   : "memory");
      gradient_pair(dp, 2 * i, p[0], p[1]);
      gradient_pair(dp, 2 * i + 1, p[2], p[3]);
    }
  }

  /// Both warpgroups: dS of the block is there, and that of the block before no longer needed.
  __device__ void share_done() const {
    HopperBackwardShared& shared = hopper_shared();
    __syncwarp();
    release(&shared.ds_full[used & 1]);
    await<2>(shared.ds_full, used);
  }

  /// The block's rows, and whether any pair of it is hidden.
  __device__ int row_of(const HopperWalk& at) const { return tile().q_begin + at.block * kM; }
  __device__ bool masked(int row) const { return row < tile().full_begin || tile().full_end - row < kM; }
  /// This warpgroup's panels of dQ: formed and sent off.
  __device__ void add_dq(const HopperWalk& at) {
    const bool whole = tile().sum_block < 0;
    const auto place = [&] {
      return static_cast<i64>(tile().sum_block + at.block) * args.heads_q + at.head;  // formed again, not kept
    };
    if (Config::kOrdered && !whole) {
      if (threadIdx.x % 128 == 0)
        while (load_acquire(args.added + place() * 2 + warpgroup) != tile().index) {
        }
      named_barrier(kBarrierTurn + warpgroup, 128);
    }
#pragma unroll 1
    for (int panel = warpgroup; panel < Shape::kPanels; panel += 2) {
      float dq[Shape::kDqColumns / 2];
      const u64 a = descriptor(ds_address(used & 1), 0),
                b = descriptor(k_address() + panel * Shape::kPanelN, 0);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kN / 16; ++k)
        Wgmma<Shape::kDqColumns>::template from_shared<Config::kBf16, 1, 1>(dq, a + k * 2048 / 16,
                                                                            b + k * 2048 / 16, k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin_registers(dq);
      if (whole) {
        store_dq(args.dq, dq, args.scale, panel, at.head, row_of(at), tile().q_end);
        if (several() && any_non_finite(dq)) slot().again = 1;
      } else {
        float* to = args.dq_sum + (place() * HopperDqShape::kParts + panel) * HopperDqShape::kFloats +
                    threadIdx.x % 128 * 4;
#pragma unroll
        for (int i = 0; i < Shape::kDqColumns / 8; ++i)
          add_four(to + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
      }
    }
    if (Config::kOrdered && !whole) {
      __threadfence();
      named_barrier(kBarrierTurn + warpgroup, 128);
      if (threadIdx.x % 128 == 0) store_release(args.added + place() * 2 + warpgroup, tile().index + 1);
    }
  }

  __device__ HopperWalk begin() const {
    HopperWalk at(blocks_of(tile()), tile().start, slot().q_head, slot().heads);
    at.left = uniform(at.left);
    return at;
  }

  /// The warpgroup of S, P and dV: one block, whose S is there. kMore: that of the next block is issued.
  template <bool kMore>
  __device__ void step_scores(float (&dv)[Shape::kColumnsV / 2], float (&s)[kM / 2], const HopperWalk& at) {
    HopperBackwardShared& shared = hopper_shared();
    u32 p[kM / 4];
    float2 lse[kM / 8];
    load_pairs(lse, hopper_shared().lse, used);
    exponentials(s, lse);
    if (masked(row_of(at))) hide<false>(s, row_of(at));
    release(&shared.q_empty[buffer_of<Config::kStages>(used)]);
    pack(p, s);
    send(p);
    await<Config::kStagesDo>(shared.do_full, used);
    pin_registers(dv);
    pin_registers(p);
    multiply_rows<Shape::kColumnsV>(dv, p, do_rows(used));
    if constexpr (kMore) {
      await<Config::kStages>(shared.q_full, used + 1);
      multiply_transposed<Shape::kSteps>(s, k_address(), q_rows(used + 1));
    }
    share_done();
    wgmma_wait<kMore ? 1 : 0>();
    pin_registers(dv);
    pin_registers(p);
    release(&shared.do_empty[buffer_of<Config::kStagesDo>(used)]);
    add_dq(at);
    wgmma_wait<0>();
    pin_registers(s);
    ++used;
  }
  __device__ void walk_scores(float (&dv)[Shape::kColumnsV / 2]) {
    HopperBackwardShared& shared = hopper_shared();
    float s[kM / 2];
    HopperWalk at = begin();
#pragma unroll
    for (int i = 0; i < Shape::kColumnsV / 2; ++i) dv[i] = 0.f;
    if (at.left <= 0) return;
    barrier_wait(smem_address(&shared.k_full), slot().phase);
    if (across()) copy_across();
    await<Config::kStages>(shared.q_full, used);
    multiply_transposed<Shape::kSteps>(s, k_address(), q_rows(used));
    wgmma_wait<0>();
    pin_registers(s);
#pragma unroll 1
    for (; at.left > 1; at.next(blocks_of(tile()))) step_scores<true>(dv, s, at);
    step_scores<false>(dv, s, at);
    release(&shared.v_empty);
    release(&shared.k_empty);
  }

  __device__ void start_dp(float (&dp)[kM / 2], int use) const {
    await<Config::kStagesDo>(hopper_shared().do_full, use);
    multiply_transposed<Shape::kStepsV>(dp, v_address(), do_rows(use));
    wgmma_wait<0>();
    pin_registers(dp);
  }
  /// The warpgroup of dP, dS and dK: one block, whose dP is there. kMore: that of the next block is issued.
  template <bool kMore>
  __device__ void step_gradients(float (&dk)[Shape::kColumns / 2], float (&dp)[kM / 2], const HopperWalk& at) {
    HopperBackwardShared& shared = hopper_shared();
    u32 ds[kM / 4];
    release(&shared.do_empty[buffer_of<Config::kStagesDo>(used)]);
    await<Config::kStages>(shared.q_full, used);  // and delta
    receive_gradients(dp);
    if (masked(row_of(at))) hide<true>(dp, row_of(at));
    pack(ds, dp);
    share(ds);
    fence_async_proxy();
    share_done();
    pin_registers(dk);
    pin_registers(ds);
    multiply_rows<Shape::kColumns>(dk, ds, q_rows(used));
    if constexpr (kMore) {
      await<Config::kStagesDo>(shared.do_full, used + 1);
      multiply_transposed<Shape::kStepsV>(dp, v_address(), do_rows(used + 1));
    }
    wgmma_wait<kMore ? 1 : 0>();
    pin_registers(dk);
    pin_registers(ds);
    release(&shared.q_empty[buffer_of<Config::kStages>(used)]);
    add_dq(at);
    wgmma_wait<0>();
    pin_registers(dp);
    ++used;
  }
  __device__ void walk_gradients(float (&dk)[Shape::kColumns / 2]) {
    HopperBackwardShared& shared = hopper_shared();
    float dp[kM / 2];
    HopperWalk at = begin();
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) dk[i] = 0.f;
    if (at.left <= 0) return;
    barrier_wait(smem_address(&shared.k_full), slot().phase);
    barrier_wait(smem_address(&shared.v_full), slot().phase);
    if (across()) copy_across();
    start_dp(dp, used);
#pragma unroll 1
    for (; at.left > 1; at.next(blocks_of(tile()))) step_gradients<true>(dk, dp, at);
    step_gradients<false>(dk, dp, at);
    release(&shared.v_empty);
    release(&shared.k_empty);
  }

  /// kScores: as the warpgroup of S, else of dP.
  template <bool kScores>
  __device__ void run_as() {
    HopperBackwardShared& shared = hopper_shared();
#pragma unroll 1
    for (;; ++round) {
      if (uniform(await_slot(round).head) < 0) return;
      float acc[(kScores ? Shape::kColumnsV : Shape::kColumns) / 2];
      if constexpr (kScores)
        walk_scores(acc);
      else
        walk_gradients(acc);
      if (!must_repeat(any_non_finite(acc))) {
        if constexpr (kScores)
          store_one<Config::kDimV, Shape::kColumnsV>(args.dv, acc, 1.f);
        else
          store_one<Config::kDim, Shape::kColumns>(args.dk, acc, args.scale);
      }
      __syncwarp();
      release(&shared.slot_empty[buffer_of<Config::kSlots>(round)]);
    }
  }

  __device__ static void run(const HopperBackwardArgs& args) {
    if (warpgroup_index() == 0)
      HopperWideConsumer(args, 0).run_as<true>();
    else
      HopperWideConsumer(args, 1).run_as<false>();
  }
};

}  // namespace bdcp::kernel
