// Backward on Hopper: wgmma fed by TMA, specialised warps, a persistent grid. sm_90a.
//
// Two warps load, two threads add dQ to its sums (where it has none, two warps form rowsum(dO * O)), two
// warpgroups of 64 keys each compute. A tile of K/V rows stays, with its dK and dV in registers, and the query
// rows that see it pass in blocks of kM, one q head of the K/V head after the other, in a fixed order: dK and
// dV are the same bits on every run. Scores are computed transposed (keys x rows), so that P and dS go from
// accumulators to the operand of dV += P * dO and dK += dS * Q without leaving the registers; dS also passes
// through shared memory for dQ = dS^T * K. dQ of a block is formed one block later: by then the other
// warpgroup's dS is there, so that the two need not keep step, and one computes exponentials while the other
// multiplies.
//
// Items are drawn from a counter, longest first, each when the one before is near its end. The results of a
// tile that several documents share are checked; the loading warp brings a tile that is not finite again, one
// document at a time, once its slot is free.
//
// Config: kBf16, kDim, kDimV (real head dims), kRatio (q heads per K/V head), kM rows per block, kN keys per
// tile (64 where a head is wider than 128: hopper_backward_wide.cuh), kStages of Q, kStagesDo, kSlots tiles in
// flight, kDescending (blocks from the last row on), kOrdered (tiles add dQ in the order of their keys), kSums
// (rows may have keys in several tiles), kDeltaRows (else: rows of O at a time), kSplit (some tiles have an
// item per q head: hopper_backward_parts.cuh), kPayloadF32 (dtype of remote dK/dV), kSmem.
#pragma once

#include "hopper_backward_keys.cuh"
#include "hopper_backward_sums.cuh"
#include "hopper_backward_whole.cuh"
#include "hopper_backward_wide.cuh"

extern "C" __global__ void __launch_bounds__(bdcp::kernel::HopperBackwardShape::kThreads, 1)
    hopper_backward(const __grid_constant__ bdcp::kernel::HopperBackwardArgs args) {
  using namespace bdcp::kernel;
  wait_for_previous_kernel();
  using Shape = HopperBackwardShape;
  HopperBackwardShared& shared = hopper_shared();
  if (threadIdx.x == 0) {
    constexpr int kWarps = 8;  // that compute
    const auto init = [](const u64* barrier, int arrivals) { barrier_init(smem_address(barrier), arrivals); };
    for (int i = 0; i < Config::kSlots; ++i) {
      init(&shared.tile_full[i], 33);  // and each lane's copies
      init(&shared.slot_empty[i], kWarps + 3);
      shared.slots[i].again = 0;
    }
    for (int i = 0; i < Config::kStages; ++i) {
      init(&shared.q_full[i], 33);  // the loads, and each lane's LSE and delta or HopperDelta's
      init(&shared.q_empty[i], kWarps);
    }
    for (int i = 0; i < Config::kStagesDo; ++i) {
      init(&shared.do_full[i], 1);
      init(&shared.do_empty[i], kWarps);
    }
    init(&shared.k_full, 1);
    init(&shared.k_empty, kWarps);
    init(&shared.v_full, 1);
    init(&shared.v_empty, kWarps);
    init(&shared.near_end, 1);
    init(&shared.meeting, 256);
    for (int i = 0; i < 2; ++i) {
      init(&shared.ds_full[i], kWarps);
      init(&shared.ds_empty[i], kWarps);
      init(&shared.dq_full[i], kWarps / 2);
      init(&shared.dq_empty[i], 1);
      init(&shared.o_full[i], 1);
    }
    shared.again_count = shared.skipped = 0;
    shared.item_count = args.tile_count != nullptr ? *args.tile_count * args.heads_kv : args.item_count;
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    prefetch_map(args.q);
    prefetch_map(args.dout);
    prefetch_map(args.k);
    prefetch_map(args.v);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<Shape::kProducerRegisters>();
    if (threadIdx.x < 32) {
      HopperKeyProducer(args).run();
    } else if (threadIdx.x < 64) {
      HopperRowProducer(args).run();
    } else if (!Config::kSums && threadIdx.x < 96) {
      HopperDelta<0>(args).run();
    } else if (!Config::kSums) {
      HopperDelta<1>(args).run();
    } else if (threadIdx.x == 64 || threadIdx.x == 96) {
      HopperAdder(args, static_cast<int>(threadIdx.x) / 32 - 2).run();
    }
  } else {
    more_registers<Shape::kConsumerRegisters>();
    if constexpr (Shape::kWide)
      HopperWideConsumer::run(args);
    else
      HopperKeyConsumer(args).run();
  }
}
