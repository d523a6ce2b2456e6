// Warp-level matrix products whose shared-memory operands are fetched ahead of their use. Without that, the
// tensor cores wait for shared memory and shared memory for the tensor cores: two warps per scheduler cannot
// hide either.
#pragma once

#include "portable_common.cuh"

namespace bdcp::kernel {

/// acc += A * B over kSteps steps of 16. `load_a(step, a)` fills the warp's kMt A fragments of a step,
/// `load_b(step, pair, b)` the B fragments of two neighbouring n8 tiles. B runs kAhead pairs ahead of the
/// products.
template <bool kBf16, int kSteps, int kAhead, int kMt, int kTiles, class LoadA, class LoadB>
__device__ inline void multiply_ahead(float (&acc)[kMt][kTiles][4], LoadA load_a, LoadB load_b) {
  static_assert(kTiles % 2 == 0, "n8 tiles come in pairs");
  constexpr int kPairs = kTiles / 2, kItems = kSteps * kPairs;
  constexpr int kDistance = kAhead < kPairs ? kAhead : kPairs;  // two A buffers reach no further
  u32 a[2][kMt][4], b[kDistance + 1][4];
#pragma unroll
  for (int item = -kDistance; item < kItems; ++item) {
    const int next = item + kDistance;
    if (next < kItems) {
      if (next % kPairs == 0) load_a(next / kPairs, a[next / kPairs % 2]);
      load_b(next / kPairs, next % kPairs, b[next % (kDistance + 1)]);
    }
    if (item < 0) continue;
    const int step = item / kPairs, pair = item % kPairs, slot = item % (kDistance + 1);
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt) {
      mma_16x8x16<kBf16>(acc[mt][2 * pair], a[step % 2][mt], b[slot][0], b[slot][1]);
      mma_16x8x16<kBf16>(acc[mt][2 * pair + 1], a[step % 2][mt], b[slot][2], b[slot][3]);
    }
  }
}

template <int kMt, int kTiles>
__device__ inline void clear(float (&acc)[kMt][kTiles][4]) {
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[mt][n][i] = 0.f;
}

}  // namespace bdcp::kernel
