// Moving rows between global and shared memory in the portable kernels. Needs Config::kAligned.
#pragma once

#include "portable_common.cuh"

namespace bdcp::kernel {

/// The CTA's dynamic shared memory.
__device__ inline char* dynamic_shared() {
  extern __shared__ __align__(128) char bdcp_dynamic_shared[];
  return bdcp_dynamic_shared;
}

/// The same value, opaque to the compiler: what is computed from it is computed where it stands and not kept in
/// registers from elsewhere. Addresses are cheap to form again, and registers bound this kernel.
__device__ inline int formed_again(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// How a CTA of kThreads copies rows of kDim elements (zero-padded to kPad) into shared rows of kPitch: a
/// thread keeps its 16-byte chunk of the row and steps down the rows, so that one pointer per thread is all the
/// state.
template <int kThreads, int kDim, int kPad, int kPitch>
struct RowCopy {
  static constexpr int kChunks = kPad / 8;
  static constexpr int kLanes = kChunks <= 4    ? 4
                                : kChunks <= 8  ? 8
                                : kChunks <= 16 ? 16
                                : kChunks <= 32 ? 32
                                                : 64;
  static constexpr int kStep = kThreads / kLanes;  // rows per pass

  __device__ static int chunk(int thread) { return thread % kLanes; }
  __device__ static int row(int thread) { return thread / kLanes; }
  __device__ static void copy(u32 smem, int r, int c, const u16* source, bool valid) {
    if (kLanes != kChunks && c >= kChunks) return;
    const bool real = valid && (kDim == kPad || c * 8 < kDim);
    const u32 target = smem + (r * kPitch + c * 8) * 2;
    if constexpr (Config::kAligned) {
      cp_async_16(target, source, real);
    } else {
      u32 word[4] = {0, 0, 0, 0};
      if (real) {
#pragma unroll
        for (int w = 0; w < 4; ++w) word[w] = source[2 * w] | static_cast<u32>(source[2 * w + 1]) << 16;
      }
      asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(target), "r"(word[0]), "r"(word[1]),
                   "r"(word[2]), "r"(word[3])
                   : "memory");
    }
  }
};

/// Two neighbouring elements of the 16-bit type.
template <bool kBf16, bool kAligned>
__device__ inline void store_pair(u16* target, float low, float high) {
  const u32 pair = pack_16<kBf16>(low, high);
  if constexpr (kAligned) {
    *reinterpret_cast<u32*>(target) = pair;
  } else {
    target[0] = static_cast<u16>(pair);
    target[1] = static_cast<u16>(pair >> 16);
  }
}

/// A quad's part of one row of accumulators, rounded: 8 * kTiles columns from `target` on, of which `columns`
/// (a multiple of 8) exist. value(tile, i): the lane's two columns of an n8 tile. All lanes of a warp call
/// together; `real`: whether the quad's row is to be written.
template <bool kBf16, bool kAligned, int kTiles, class Value>
__device__ inline void store_row(u16* target, int columns, bool real, Value value) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; tile += 4) {
    if (kAligned && tile + 4 <= kTiles) {  // whole 16-byte pieces, one tile per lane
      u32 word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = pack_16<kBf16>(value(tile + i, 0), value(tile + i, 1));
      transpose_quad(word);
      const int column = (tile + lane) * 8;
      if (real && column < columns)
        *reinterpret_cast<uint4*>(target + column) = make_uint4(word[0], word[1], word[2], word[3]);
    } else {
#pragma unroll
      for (int i = tile; i < tile + 4 && i < kTiles; ++i)
        if (real && i * 8 < columns)
          store_pair<kBf16, kAligned>(target + i * 8 + lane * 2, value(i, 0), value(i, 1));
    }
  }
}

/// Adds to four neighbouring floats (16-byte aligned); the order of adds from different CTAs is free.
__device__ inline void add_four(float* target, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(target), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
#else
  atomicAdd(target, a);
  atomicAdd(target + 1, b);
  atomicAdd(target + 2, c);
  atomicAdd(target + 3, d);
#endif
}

}  // namespace bdcp::kernel
