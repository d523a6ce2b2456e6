// The warpgroups of hopper_backward that compute: 64 keys each.
#pragma once

#include "hopper_backward_parts.cuh"

namespace bdcp::kernel {

/// One warpgroup's keys.
struct HopperKeyConsumer : HopperKeyWork {
  /// Whether dQ of the block before is issued before dS of this one is shared. Faster where rows are split, as
  /// a product is short then; the other way round else (tools/results/NOTES.md).
  static constexpr bool kDqFirst = Shape::kSplitRows;
  /// LSE and delta are fetched while products run, where there are registers for them.
  static constexpr bool kAhead = kM == 64;
  float dk[Shape::kColumns / 2], dv[Shape::kColumnsV / 2];
  /// Of the tile. While products run, a load from shared memory takes a hundred cycles: none in the loop.
  int blocks, first_row, full_begin, full_end, skipped;
  bool sums;

  __device__ explicit HopperKeyConsumer(const HopperBackwardArgs& a) : HopperKeyWork(a, warpgroup_index()) {}

  /// s = K * Q^T, issued.
  __device__ void multiply_scores(float (&s)[kM / 2], int use) const {
    multiply_transposed<Shape::kSteps>(s, k_address() + warpgroup * 64 * 128,
                                       q_address(buffer_of<Config::kStages>(use)));
  }
  /// dp = V * dO^T, issued.
  __device__ void multiply_dp(float (&dp)[kM / 2]) const {
    multiply_transposed<Shape::kStepsV>(dp, v_address() + warpgroup * 64 * 128,
                                        do_address(buffer_of<Config::kStagesDo>(used)));
  }
  /// This warpgroup's part of dQ = dS * K for a block whose dS is there, issued.
  __device__ void multiply_dq(float (&dq)[Shape::kDqColumns / 2], int use) const {
    await<2>(hopper_shared().ds_full, use);
    const int part = Shape::kSplitRows     ? 0
                     : Shape::kPanels == 2 ? warpgroup * Shape::kPanelN
                                           : warpgroup * Shape::kDqColumns * 2;
    const u64 a = descriptor(ds_address(use & 1) + (Shape::kSplitRows ? warpgroup * Shape::kPanelN : 0), 0),
              b = descriptor(k_address() + part, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kN / 16; ++k)
      Wgmma<Shape::kDqColumns>::template from_shared<Config::kBf16, 1, 1>(dq, a + k * 2048 / 16,
                                                                          b + k * 2048 / 16, k > 0);
    wgmma_commit();
  }

  /// dQ of a block leaves: to its rows where it is complete, else to shared memory, from where it is added.
  /// `at`: this block or, if `previous`, the one after it.
  __device__ void leave(const float (&dq)[Shape::kDqColumns / 2], HopperWalk at, bool previous) {
    HopperBackwardShared& shared = hopper_shared();
    const int use = used - previous;
    release(&shared.ds_empty[use & 1]);
    if (!sums) {
      if (previous) at.back(blocks);
      store_dq(args.dq, dq, args.scale, warpgroup, at.head, first_row + at.block * kM, tile().q_end);
      if (several() && any_non_finite(dq)) slot().again = 1;  // rows past the end are zeros or as bad as others
      return;
    }
    barrier_wait(smem_address(&shared.dq_empty[warpgroup]), (use - skipped & 1) ^ 1);
    const u32 target = dq_address(warpgroup) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < Shape::kDqColumns / 8; ++i)
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(target + i * 2048), "f"(dq[4 * i]),
                   "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    __syncwarp();
    release(&shared.dq_full[warpgroup]);  // HopperAdder fences: nobody waits for it there
  }

  __device__ bool masked(int row) const { return row < full_begin || full_end - row < kM; }
  /// dS of this block, for both warpgroups.
  __device__ void share_block(const u32 (&ds)[kM / 4]) const {
    HopperBackwardShared& shared = hopper_shared();
    barrier_wait(smem_address(&shared.ds_empty[used & 1]), parity_of<2>(used) ^ 1);
    share(ds);
    fence_async_proxy();
    __syncwarp();
    release(&shared.ds_full[used & 1]);
  }

  /// One block of rows, whose S is there, and `lse` if kAhead. kPending: dQ of the block before is still to be
  /// formed. kMore: S of the next block is issued too. At its end nothing is in flight: what were in flight
  /// over the end of the loop would be copied, and everything serialised. In between there is always a product
  /// behind the one that is waited for, so that the tensor cores have work while this warpgroup does not.
  template <bool kPending, bool kMore>
  __device__ void step(float (&s)[kM / 2], float2 (&lse)[kM / 8], const HopperWalk& at) {
    HopperBackwardShared& shared = hopper_shared();
    const int row = first_row + at.block * kM;
    float dp[kM / 2], dq[Shape::kDqColumns / 2];
    float2 delta[kM / 8];
    u32 p[kM / 4], ds[kM / 4];
    await<Config::kStagesDo>(shared.do_full, used);
    multiply_dp(dp);
    if constexpr (!kAhead) load_pairs(lse, shared.lse, used);
    exponentials(s, lse);
    if (masked(row)) hide<false>(s, row);
    if constexpr (kAhead) load_pairs(delta, shared.delta, used);
    wgmma_wait<0>();
    pin_registers(dp);
    if constexpr (!kAhead) load_pairs(delta, shared.delta, used);
    gradients(dp, s, delta);
    if constexpr (!kMore) release(&shared.v_empty);
    if (masked(row)) hide<true>(dp, row);
    pack(p, s);
    start_dv(p);
    pack(ds, dp);
    pin_registers(dk);
    pin_registers(ds);
    // share_block only reads dS; its registers are left alone until this product is over.
    multiply_rows<Shape::kColumns>(dk, ds, q_address(buffer_of<Config::kStages>(used)));
    if constexpr (kPending && kDqFirst) multiply_dq(dq, used - 1);
    share_block(ds);
    if constexpr (kPending && !kDqFirst) multiply_dq(dq, used - 1);
    wgmma_wait<kPending ? 2 : 1>();
    pin_registers(dv);
    pin_registers(p);
    release(&shared.do_empty[buffer_of<Config::kStagesDo>(used)]);
    if constexpr (kMore) {
      await<Config::kStages>(shared.q_full, used + 1);
      multiply_scores(s, used + 1);
    }
    wgmma_wait<kPending + kMore>();
    pin_registers(dk);
    pin_registers(ds);
    release(&shared.q_empty[buffer_of<Config::kStages>(used)]);
    if constexpr (kPending) {
      wgmma_wait<kMore ? 1 : 0>();
      pin_registers(dq);
      leave(dq, at, true);
    }
    if constexpr (kMore) {
      if constexpr (kAhead) load_pairs(lse, shared.lse, used + 1);
      wgmma_wait<0>();
      pin_registers(s);
    } else {
      multiply_dq(dq, used);
      wgmma_wait<0>();
      pin_registers(dq);
      release(&shared.k_empty);
      leave(dq, at, false);
    }
    ++used;
  }
  __device__ void start_dv(u32 (&p)[kM / 4]) {
    pin_registers(dv);
    pin_registers(p);
    multiply_rows<Shape::kColumnsV>(dv, p, do_address(buffer_of<Config::kStagesDo>(used)));
  }

  /// All q heads and row blocks of the tile.
  __device__ void walk() {
    HopperBackwardShared& shared = hopper_shared();
    float s[kM / 2];
    blocks = uniform(blocks_of(tile()));
    first_row = uniform(tile().q_begin);
    full_begin = uniform(tile().full_begin);
    full_end = uniform(tile().full_end);
    skipped = uniform(slot().skipped);
    sums = uniform(tile().sum_block) >= 0;
    HopperWalk at(blocks, tile().start, slot().q_head, slot().heads);
    at.left = uniform(at.left);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < Shape::kColumnsV / 2; ++i) dv[i] = 0.f;
    if (at.left <= 0) return;
    await<Config::kStages>(shared.q_full, used);
    barrier_wait(smem_address(&shared.k_full), slot().phase);
    if (across()) copy_across();
    multiply_scores(s, used);
    float2 lse[kM / 8];
    load_pairs(lse, shared.lse, used);
    barrier_wait(smem_address(&shared.v_full), slot().phase);
    wgmma_wait<0>();
    pin_registers(s);
    if (at.left == 1) return step<false, false>(s, lse, at);
    step<false, true>(s, lse, at);
    at.next(blocks);
#pragma unroll 1
    for (; at.left > 1; at.next(blocks)) step<true, true>(s, lse, at);
    step<true, false>(s, lse, at);
  }

  __device__ void run() {
    HopperBackwardShared& shared = hopper_shared();
#pragma unroll 1
    for (;; ++round) {
      if (uniform(await_slot(round).head) < 0) return;
      walk();
      bool whole = true;
      if constexpr (Config::kSplit) whole = slot().group < 0 || HopperParts::sum(args, slot(), dk, dv);
      if (whole && !must_repeat(any_non_finite(dk) || any_non_finite(dv))) {
        store_one<Config::kDim, Shape::kColumns>(args.dk, dk, args.scale);
        store_one<Config::kDimV, Shape::kColumnsV>(args.dv, dv, 1.f);
      }
      __syncwarp();
      release(&shared.slot_empty[buffer_of<Config::kSlots>(round)]);
    }
  }
};

}  // namespace bdcp::kernel
