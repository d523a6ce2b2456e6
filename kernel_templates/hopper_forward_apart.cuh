// Tiles of hopper_forward that several documents share, where one of them is not finite.
#pragma once

#include "hopper_forward_work.cuh"

namespace bdcp::kernel {

struct HopperSharedRows : HopperRowWork {
  using HopperRowWork::HopperRowWork;

  /// Documents that share a tile also share P * V: 0 * NaN carries one document's NaN into another. A clean
  /// result proves that nothing was carried; otherwise each document's product is done again with the others'
  /// rows of V as zeros, through this warpgroup's rows of Q, which nobody needs any more.
  __device__ void keep_apart() {
    bool bad = false;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) bad |= !(fabsf(out[i]) <= 3.4028234e38f);
    if (!named_barrier_any(4 + warpgroup, 128, bad)) return;
    const HopperTile tile = this->tile();
    const KeyRange* visible = args.visible + tile.rows_at;
    const int last = min(tile.q_end - tile.q_begin - 1, (warpgroup * 64 + 63) / Config::kPack);
    int token = warpgroup * 64 / Config::kPack;  // of the tile
#pragma unroll 1
    while (token <= last) {
      const int begin = token;
      KeyRange keys = visible[token];
      // Rows without keys have {0, 0} and may join those of a document whose keys begin at 0.
      for (; token <= last && visible[token].begin == keys.begin; ++token)
        keys.end = max(keys.end, visible[token].end);
      keys.begin -= tile.k_begin;
      keys.end -= tile.k_begin;
      redo_panels<0>(keys, begin, token);
    }
  }
  template <int kPanel>
  __device__ void redo_panels(KeyRange keys, int begin, int end) {
    if constexpr (kPanel < Shape::kPanelsV) {
      constexpr int kWide = Shape::kColumns - kPanel * 64 < 64 ? Shape::kColumns - kPanel * 64 : 64;
      float part[kWide / 2];
      redo_chunks<kPanel, 0>(part, keys);
#pragma unroll
      for (int i = 0; i < kWide / 2; ++i) {
        const int token = row_of(i / 2 % 2) / Config::kPack;
        if (token >= begin && token < end) out[kPanel * 32 + i] = part[i];
      }
      redo_panels<kPanel + 1>(keys, begin, end);
    }
  }
  /// part (+)= P * V of the 64 keys from kChunk on and those after them. A constant, as the compiler would
  /// unroll a loop over chunks last, and its body for any number of steps before.
  template <int kPanel, int kChunk, int kCount>
  __device__ void redo_chunks(float (&part)[kCount], KeyRange keys) {
    if constexpr (kChunk < kN) {
      constexpr int kKeys = kN - kChunk < 64 ? kN - kChunk : 64;
      const int thread = threadIdx.x % 128;
      const u32 scratch = q_address(buffer()) + warpgroup * 64 * 128;
      const u32 panel = v_address(buffer_of<Config::kStages>(used)) + kPanel * Shape::kPanelK;
#pragma unroll 1
      for (int i = thread; i < kKeys * 8; i += 128) {
        const int key = kChunk + i / 8;
        u32 word[4] = {0, 0, 0, 0};
        if (key >= keys.begin && key < keys.end)
          asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                       : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                       : "r"(panel + key * 128 + i % 8 * 16)
                       : "memory");
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(scratch + i * 16), "r"(word[0]),
                     "r"(word[1]), "r"(word[2]), "r"(word[3])
                     : "memory");
      }
      fence_async_proxy();
      named_barrier(4 + warpgroup, 128);
      pin_eights(p);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k)
        Wgmma<kCount * 2>::template from_registers<Config::kBf16, 1>(
            part, p + kChunk / 4 + 4 * k, descriptor(scratch, 0) + k * 2048 / 16, kChunk + k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin_eights(part);
      named_barrier(4 + warpgroup, 128);
      redo_chunks<kPanel, kChunk + 64>(part, keys);
    }
  }
};

}  // namespace bdcp::kernel
