// What the computing warpgroups of hopper_backward have in common.
#pragma once

#include "hopper_backward_load.cuh"
#include "hopper_backward_store.cuh"

namespace bdcp::kernel {

/// Named barrier of both warpgroups.
constexpr int kBarrierVote = 2;

struct HopperKeyWork {
  using Shape = HopperBackwardShape;
  static constexpr int kM = Config::kM, kN = Config::kN;

  const HopperBackwardArgs& args;
  const int warpgroup;
  int used = 0, round = 0;  // blocks; tiles

  __device__ HopperKeyWork(const HopperBackwardArgs& a, int which) : args(a), warpgroup(which) {}
  /// Of this thread.
  __device__ static int warpgroup_index() { return uniform(static_cast<int>(threadIdx.x) / 128 - 1); }

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x % 128 / 32; }
  __device__ HopperBackwardSlot& slot() const {
    return hopper_shared().slots[buffer_of<Config::kSlots>(round)];
  }
  __device__ const HopperKeyTile& tile() const { return slot().tile; }
  /// The first of the 64 keys of this warpgroup, and of the two of this thread.
  __device__ int keys_begin() const { return Shape::kWide ? 0 : warpgroup * 64; }
  __device__ int key() const { return keys_begin() + warp() * 16 + lane() / 4; }
  __device__ bool several() const { return tile().seg_end - tile().seg_begin > 1; }

  __device__ static void release(const u64* empty) {
    if (lane() == 0) barrier_arrive(smem_address(empty));
  }
  template <int kBuffers>
  __device__ static void await(const u64* full, int use) {
    barrier_wait(smem_address(full + buffer_of<kBuffers>(use)), parity_of<kBuffers>(use));
  }

  /// acc = keys * rows^T, issued; kSteps k16 steps of columns.
  template <int kSteps>
  __device__ static void multiply_transposed(float (&acc)[kM / 2], u32 keys, u32 rows) {
    asm volatile("" : "+r"(keys));  // else its descriptors would be kept over the loop
    const u64 a = descriptor(keys, 0), b = descriptor(rows, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      Wgmma<kM>::template from_shared<Config::kBf16, 0, 0>(acc, a + (k / 4 * Shape::kPanelN + k % 4 * 32) / 16,
                                                           b + (k / 4 * Shape::kPanelM + k % 4 * 32) / 16,
                                                           k > 0);
    wgmma_commit();
  }
  /// acc += a * rows of a block, issued; `a` in registers.
  template <int kColumns>
  __device__ static void multiply_rows(float (&acc)[kColumns / 2], const u32 (&a)[kM / 4], u32 rows) {
    const u64 b = descriptor(rows, Shape::kPanelM);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kM / 16; ++k)
      Wgmma<kColumns>::template from_registers<Config::kBf16, 1>(acc, a + 4 * k, b + k * 2048 / 16, 1);
    wgmma_commit();
  }
  /// LSE or delta of the thread's `n`th pair of rows.
  __device__ float2 row_pair(const float (&values)[Config::kStages][kM], int n) const {
    return *reinterpret_cast<const float2*>(&values[buffer_of<Config::kStages>(used)][n * 8 + lane() % 4 * 2]);
  }
  /// Of all its pairs, `use` being the block's.
  __device__ static void load_pairs(float2 (&pairs)[kM / 8], const float (&values)[Config::kStages][kM],
                                    int use) {
    const float* from = values[buffer_of<Config::kStages>(use)] + lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kM / 8; ++n) pairs[n] = *reinterpret_cast<const float2*>(from + n * 8);
  }
  /// s becomes P.
  __device__ void exponentials(float (&s)[kM / 2], const float2 (&lse)[kM / 8]) const {
#pragma unroll
    for (int n = 0; n < kM / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * n + i] = exp2_approx(s[4 * n + i] * args.scale_log2 - (i % 2 ? lse[n].y : lse[n].x));
  }
  /// dp becomes dS / scale.
  __device__ static void gradients(float (&dp)[kM / 2], const float (&p)[kM / 2],
                                   const float2 (&delta)[kM / 8]) {
#pragma unroll
    for (int n = 0; n < kM / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dp[4 * n + i] = p[4 * n + i] * (dp[4 * n + i] - (i % 2 ? delta[n].y : delta[n].x));
  }
  /// The same of one pair, from P as it was rounded, which costs fewer registers.
  __device__ void gradient_pair(float (&dp)[kM / 2], int n, u32 first, u32 second) const {
    const float2 delta = row_pair(hopper_shared().delta, n);
    float p[4];
    unpack_16<Config::kBf16>(first, p[0], p[1]);
    unpack_16<Config::kBf16>(second, p[2], p[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[4 * n + i] = p[i] * (dp[4 * n + i] - (i % 2 ? delta.y : delta.x));
  }
  /// Who sees a key of the tile.
  __device__ HopperKeyRows rows_of(int index) const {
    if (tile().rows_at >= 0) return slot().keys[index];
    const Segment one = slot().one;
    const int position = tile().k_begin + index;
    // Bottom-right aligned: the last row sees all keys, the row before all but the last, ...
    const int first = one.q_end - (one.k_end - position);
    HopperKeyRows rows{max(one.q_begin, first), one.q_end, 0, 0};
    rows.steep = first >= one.q_begin && position == one.k_begin ? first + 1 : rows.first;
    if (position >= tile().k_end) rows.end = rows.first;
    return rows;
  }
  /// Zeroes what does not see the thread's keys; of dS also rows that see nothing else. Selected, not
  /// multiplied: P, dP and delta of a hidden pair may be anything.
  template <bool kGradient>
  __device__ void hide(float (&s)[kM / 2], int row) const {
    const int first = row + lane() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const HopperKeyRows seen = rows_of(key() + half * 8);
      const int begin = (kGradient ? seen.steep : seen.first) - first, end = seen.end - first;
#pragma unroll
      for (int n = 0; n < kM / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (n * 8 + i < begin || n * 8 + i >= end) s[4 * n + 2 * half + i] = 0.f;
    }
  }
  __device__ static void pack(u32 (&packed)[kM / 4], const float (&s)[kM / 2]) {
#pragma unroll
    for (int i = 0; i < kM / 4; ++i) packed[i] = pack_16<Config::kBf16>(s[2 * i], s[2 * i + 1]);
  }
  /// dS of this warpgroup's keys into shared memory.
  __device__ void share(const u32 (&ds)[kM / 4]) const {
    const int row = keys_begin() + warp() * 16 + lane() % 16;
    const u32 base = ds_address(used & 1) + row * 128;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      const int chunk = i % 4 * 2 + lane() / 16;
      stmatrix_x4(base + i / 4 * Shape::kPanelN + ((chunk ^ row % 8) << 4), ds[4 * i], ds[4 * i + 1],
                  ds[4 * i + 2], ds[4 * i + 3]);
    }
  }

  /// Both warpgroups. Where they run code of their own, they have no instruction in common to meet at.
  __device__ static void meet() {
    if constexpr (Shape::kWide)
      barrier_meet(smem_address(&hopper_shared().meeting));
    else
      named_barrier(kBarrierVote, 256);
  }
  __device__ bool across() const { return tile().k_begin < args.remote_len && tile().k_end > args.remote_len; }
  /// K and V of the tile with the last remote and the first local keys, row by row.
  __device__ void copy_across() const {
    barrier_wait(smem_address(&hopper_shared().v_full), slot().phase);  // both are free
    copy_keys<Config::kDim, Shape::kPanels>(args.k_rows, args.remote_k_rows, k_address());
    copy_keys<Config::kDimV, Shape::kPanelsV>(args.v_rows, args.remote_v_rows, v_address());
    cp_async_wait_all();
    fence_async_proxy();
    meet();
  }
  template <int kDim, int kPanels>
  __device__ void copy_keys(const Tensor& local, const Tensor& remote, u32 target) const {
#pragma unroll 1
    for (int place = threadIdx.x - 128; place < kN * 8 * kPanels; place += 256) {
      const int chunk = place % 8, row = place / 8 % kN, panel = place / (8 * kN);
      const int position = tile().k_begin + row, column = panel * 64 + chunk * 8;
      const bool far = position < args.remote_len;
      const Tensor& from = far ? remote : local;
      const u16* source = static_cast<const u16*>(from.data) +
                          (far ? position : position - args.remote_len) * from.row_stride +
                          slot().head * from.head_stride + column;
      cp_async_16(target + panel * Shape::kPanelN + row * 128 + ((chunk ^ row % 8) << 4), source,
                  position < tile().k_end && column < kDim);
    }
  }

  template <int kCount>
  __device__ static bool any_non_finite(const float (&x)[kCount]) {
    bool bad = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) bad |= !(fabsf(x[i]) <= 3.4028234e38f);
    return bad;
  }
  /// Documents that share a tile also share products: 0 * NaN carries one document's NaN into another. A clean
  /// result proves that nothing was carried; otherwise the tile is done again, document by document. It holds
  /// whole documents, so that all of its results are then overwritten.
  __device__ bool must_repeat(bool bad) const {
    if (!several()) return false;
    if (bad) slot().again = 1;
    meet();
    return slot().again;
  }

  template <int kDim, int kColumns>
  __device__ void store_one(const PortableKeyGradient& to, const float (&acc)[kColumns / 2],
                            float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = tile().k_begin + key() + half * 8;
      const bool real = position < tile().k_end;
      const int row = position - args.remote_len;
      const bool far = row < 0;
      const bool wide = far ? Config::kPayloadF32 : row >= args.shared_begin;
      const Tensor& tensor = far ? to.remote : wide ? to.shared : to.local;
      const i64 offset = (far    ? position
                          : wide ? row - args.shared_begin
                                 : row) *
                             tensor.row_stride +
                         slot().head * tensor.head_stride;
      const auto value = [&](int n, int i) { return acc[4 * n + 2 * half + i] * factor; };
      if (real && wide) {
        float* target = static_cast<float*>(tensor.data) + offset + lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          target[n * 8] = value(n, 0);
          target[n * 8 + 1] = value(n, 1);
        }
      }
      store_row<Config::kBf16, kColumns / 8>(static_cast<u16*>(tensor.data) + offset, kDim, real && !wide,
                                             value);
    }
  }
};

}  // namespace bdcp::kernel
