// Forward on Hopper: wgmma fed by TMA, specialised warps, a persistent grid. sm_90a.
//
// One warp loads, one stores, Config::kWgs warpgroups of 64 rows each compute. A tile is kTokens tokens by
// kPack q heads; its rows walk the K/V blocks from the diagonal leftwards. While a warpgroup does its softmax,
// its own P * V and the other warpgroups' products keep the tensor cores busy. K/V of the next tile is loaded
// while this one is finished, and O leaves through Q's buffer.
//
// Config: kBf16, kDim, kDimV (real head dims), kPack (q heads per row group), kRatio (q heads per K/V head),
// kTokens per tile, kWgs, kN keys per block, kStages of K and V, kSlots of Q, kCtas per SM, kStaged (some tiles
// come in two items, see HopperTile::state; all results are the same bits), kSmem (dynamic shared memory).
#pragma once

#include "hopper_forward_load.cuh"
#include "hopper_forward_rows.cuh"

extern "C" __global__ void __launch_bounds__(bdcp::kernel::HopperShape::kThreads, bdcp::kernel::Config::kCtas)
    hopper_forward(const __grid_constant__ bdcp::kernel::HopperForwardArgs args) {
  using namespace bdcp::kernel;
  HopperShared& shared = hopper_shared();
  if (threadIdx.x == 0) {
    shared.item_count = args.tile_count != nullptr ? *args.tile_count * args.groups : args.item_count;
    const int consumers = 4 * Config::kWgs;  // warps
    for (int i = 0; i < Config::kSlots; ++i) {
      barrier_init(smem_address(&shared.tile_full[i]), 1);
      barrier_init(smem_address(&shared.q_full[i]), 1);
      barrier_init(smem_address(&shared.o_full[i]), consumers);
      barrier_init(smem_address(&shared.slot_empty[i]), 1);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      barrier_init(smem_address(&shared.k_full[i]), 1);
      barrier_init(smem_address(&shared.v_full[i]), 1);
      barrier_init(smem_address(&shared.k_empty[i]), consumers);
      barrier_init(smem_address(&shared.v_empty[i]), consumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    prefetch_map(args.q);
    prefetch_map(args.k);
    prefetch_map(args.v);
    prefetch_map(args.out);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<HopperShape::kProducerRegisters>();
    if (threadIdx.x < 32)
      HopperProducer(args).run();
    else if (threadIdx.x == 32)
      hopper_store(args);
  } else {
    more_registers<HopperShape::kConsumerRegisters>();
    HopperConsumer(args).run();
  }
}
