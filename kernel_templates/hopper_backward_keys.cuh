// The warpgroups of hopper_backward that compute: 64 keys each.
#pragma once

#include "hopper_backward_load.cuh"
#include "hopper_backward_store.cuh"

namespace bdcp::kernel {

/// Named barriers of both warpgroups.
constexpr int kBarrierDs = 1, kBarrierVote = 2;

/// Config::kOrder. kGradientsFirst: dS is formed from P in fp32, before dV += P * dO is issued. kProductsFirst:
/// under that product, from P as rounded.
enum HopperBackwardOrder { kGradientsFirst = 0, kProductsFirst = 1 };

/// One warpgroup's keys.
struct HopperKeyConsumer {
  using Shape = HopperBackwardShape;
  static constexpr int kM = Config::kM, kN = Config::kN;

  const HopperBackwardArgs& args;
  float dk[Shape::kColumns / 2], dv[Shape::kColumnsV / 2];
  const int warpgroup;
  int used = 0, round = 0;  // blocks; tiles
  u32 phases = 0;           // of the barriers of K and V (bit 0) and of dq_empty (bit 1)

  __device__ explicit HopperKeyConsumer(const HopperBackwardArgs& a)
      : args(a), warpgroup(uniform(static_cast<int>(threadIdx.x) / 128 - 1)) {}

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x % 128 / 32; }
  __device__ HopperBackwardSlot& slot() const {
    return hopper_shared().slots[buffer_of<Config::kSlots>(round)];
  }
  __device__ const HopperKeyTile& tile() const { return slot().tile; }
  __device__ bool several() const { return tile().seg_end - tile().seg_begin > 1; }

  __device__ static void release(const u64* empty) {
    if (lane() == 0) mbarrier_arrive(smem_address(empty));
  }
  template <int kBuffers>
  __device__ static void await(const u64* full, int use) {
    mbarrier_wait(smem_address(full + buffer_of<kBuffers>(use)), parity_of<kBuffers>(use));
  }

  /// s = K * Q^T, issued.
  __device__ void multiply_scores(float (&s)[kM / 2], int use) const {
    const u64 a = descriptor(k_address() + warpgroup * 64 * 128, 0),
              b = descriptor(q_address(buffer_of<Config::kStages>(use)), 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kSteps; ++k)
      Wgmma<kM>::template from_shared<Config::kBf16, 0, 0>(s, a + (k / 4 * Shape::kPanelN + k % 4 * 32) / 16,
                                                           b + (k / 4 * Shape::kPanelM + k % 4 * 32) / 16,
                                                           k > 0);
    wgmma_commit();
  }
  /// dp = V * dO^T, issued.
  __device__ void multiply_dp(float (&dp)[kM / 2]) const {
    const u64 a = descriptor(v_address() + warpgroup * 64 * 128, 0),
              b = descriptor(do_address(buffer_of<Config::kStagesDo>(used)), 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kStepsV; ++k)
      Wgmma<kM>::template from_shared<Config::kBf16, 0, 0>(dp, a + (k / 4 * Shape::kPanelN + k % 4 * 32) / 16,
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
  /// This warpgroup's part of dQ = dS * K, issued.
  __device__ void multiply_dq(float (&dq)[Shape::kDqColumns / 2]) const {
    const int part = Shape::kSplitRows     ? 0
                     : Shape::kPanels == 2 ? warpgroup * Shape::kPanelN
                                           : warpgroup * Shape::kDqColumns * 2;
    const u64 a = descriptor(ds_address(used & 1) + (Shape::kSplitRows ? warpgroup * Shape::kPanelN : 0), 0),
              b = descriptor(k_address() + part, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kN / 16; ++k)
      Wgmma<Shape::kDqColumns>::template from_shared<Config::kBf16, 1, 1>(dq, a + k * 2048 / 16,
                                                                          b + k * 2048 / 16, k > 0);
    wgmma_commit();
  }

  /// LSE or delta of the thread's `n`th pair of rows.
  __device__ float2 row_pair(const float (&values)[Config::kStages][kM], int n) const {
    return *reinterpret_cast<const float2*>(&values[buffer_of<Config::kStages>(used)][n * 8 + lane() % 4 * 2]);
  }
  /// s becomes P.
  __device__ void exponentials(float (&s)[kM / 2]) const {
#pragma unroll
    for (int n = 0; n < kM / 8; ++n) {
      const float2 lse = row_pair(hopper_shared().lse, n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * n + i] = exp2_approx(s[4 * n + i] * args.scale_log2 - (i % 2 ? lse.y : lse.x));
    }
  }
  /// dp becomes dS / scale.
  __device__ void gradients(float (&dp)[kM / 2], const float (&p)[kM / 2]) const {
#pragma unroll
    for (int n = 0; n < kM / 8; ++n) {
      const float2 delta = row_pair(hopper_shared().delta, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[4 * n + i] = p[4 * n + i] * (dp[4 * n + i] - (i % 2 ? delta.y : delta.x));
    }
  }
  /// The same from P as it was rounded, which costs fewer registers.
  __device__ void gradients(float (&dp)[kM / 2], const u32 (&p)[kM / 4]) const {
#pragma unroll
    for (int n = 0; n < kM / 8; ++n) {
      const float2 delta = row_pair(hopper_shared().delta, n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float low, high;
        unpack_16<Config::kBf16>(p[2 * n + half], low, high);
        dp[4 * n + 2 * half] = low * (dp[4 * n + 2 * half] - delta.x);
        dp[4 * n + 2 * half + 1] = high * (dp[4 * n + 2 * half + 1] - delta.y);
      }
    }
  }
  /// Who sees a key of the tile.
  __device__ HopperKeyRows rows_of(int key) const {
    if (tile().rows_at >= 0) return slot().keys[key];
    const Segment one = slot().one;
    const int position = tile().k_begin + key;
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
      const HopperKeyRows seen = rows_of(warpgroup * 64 + warp() * 16 + lane() / 4 + half * 8);
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
    const int row = warpgroup * 64 + warp() * 16 + lane() % 16;
    const u32 base = ds_address(used & 1) + row * 128;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      const int chunk = i % 4 * 2 + lane() / 16;
      stmatrix_x4(base + i / 4 * Shape::kPanelN + ((chunk ^ row % 8) << 4), ds[4 * i], ds[4 * i + 1],
                  ds[4 * i + 2], ds[4 * i + 3]);
    }
  }

  /// dQ of a block leaves: to its rows where it is complete, else to shared memory, from where it is added.
  __device__ void leave(const float (&dq)[Shape::kDqColumns / 2], int row, int head) {
    HopperBackwardShared& shared = hopper_shared();
    if (tile().sum_block < 0) {
      store_dq(args.dq, dq, args.scale, warpgroup, head, row, tile().q_end);
      if (several() && any_non_finite(dq)) slot().again = 1;  // rows past the end are zeros or as bad as others
      return;
    }
    mbarrier_wait(smem_address(&shared.dq_empty[warpgroup]), (phases >> 1) ^ 1);
    const u32 target = dq_address(warpgroup) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < Shape::kDqColumns / 8; ++i)
      asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(target + i * 2048), "f"(dq[4 * i]),
                   "f"(dq[4 * i + 1]), "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    fence_async_proxy();
    __syncwarp();
    release(&shared.dq_full[warpgroup]);
    phases ^= 2;
  }

  /// One block of rows, whose S is there. kMore: that of the next block is issued too, so that the tensor cores
  /// have work while this warpgroup does not.
  template <bool kMore>
  __device__ void step(float (&s)[kM / 2], int row, int head) {
    HopperBackwardShared& shared = hopper_shared();
    float dp[kM / 2], dq[Shape::kDqColumns / 2];
    u32 p[kM / 4], ds[kM / 4];
    const bool masked = row < tile().full_begin || row + kM > tile().full_end;
    await<Config::kStagesDo>(shared.do_full, used);
    multiply_dp(dp);
    exponentials(s);
    if (masked) hide<false>(s, row);
    if constexpr (Config::kOrder == kGradientsFirst) {
      wgmma_wait<0>();
      pin_registers(dp);
      gradients(dp, s);
    } else {
      pack(p, s);
      start_dv(p);
      wgmma_wait<1>();
      pin_registers(dp);
      gradients(dp, p);
    }
    if constexpr (!kMore) release(&shared.v_empty);
    if (masked) hide<true>(dp, row);
    pack(ds, dp);
    if constexpr (Config::kOrder == kGradientsFirst) {
      pack(p, s);
      start_dv(p);
    }
    share(ds);
    fence_async_proxy();
    named_barrier_sync(kBarrierDs, 256);
    pin_registers(dk);
    pin_registers(ds);
    multiply_dq(dq);
    multiply_rows<Shape::kColumns>(dk, ds, q_address(buffer_of<Config::kStages>(used)));
    wgmma_wait<2>();
    pin_registers(dv);
    pin_registers(p);
    release(&shared.do_empty[buffer_of<Config::kStagesDo>(used)]);
    if constexpr (kMore) {
      await<Config::kStages>(hopper_shared().q_full, used + 1);
      multiply_scores(s, used + 1);
    }
    wgmma_wait<kMore ? 2 : 1>();
    pin_registers(dq);
    leave(dq, row, head);
    // S in flight over the end of the loop would be copied, and everything serialised.
    wgmma_wait<0>();
    pin_registers(s);
    pin_registers(dk);
    pin_registers(ds);
    release(&shared.q_empty[buffer_of<Config::kStages>(used)]);
    if constexpr (!kMore) release(&shared.k_empty);
    ++used;
  }
  __device__ void start_dv(u32 (&p)[kM / 4]) {
    pin_registers(dv);
    pin_registers(p);
    multiply_rows<Shape::kColumnsV>(dv, p, do_address(buffer_of<Config::kStagesDo>(used)));
  }

  /// K and V of the tile with the last remote and the first local keys, row by row.
  __device__ void copy_across() const {
    mbarrier_wait(smem_address(&hopper_shared().v_full), phases & 1);  // both are free
    copy_keys<Config::kDim, Shape::kPanels>(args.k_rows, args.remote_k_rows, k_address());
    copy_keys<Config::kDimV, Shape::kPanelsV>(args.v_rows, args.remote_v_rows, v_address());
    cp_async_wait_all();
    fence_async_proxy();
    named_barrier_sync(kBarrierVote, 256);
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

  /// All q heads and row blocks of the tile.
  __device__ void walk() {
    HopperBackwardShared& shared = hopper_shared();
    float s[kM / 2];
    HopperWalk at(blocks_of(tile()), slot().head);
    at.left = uniform(at.left);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < Shape::kColumnsV / 2; ++i) dv[i] = 0.f;
    if (at.left <= 0) return;
    await<Config::kStages>(shared.q_full, used);
    mbarrier_wait(smem_address(&shared.k_full), phases & 1);
    if (tile().k_begin < args.remote_len && tile().k_end > args.remote_len) copy_across();
    multiply_scores(s, used);
    mbarrier_wait(smem_address(&shared.v_full), phases & 1);
    phases ^= 1;
    wgmma_wait<0>();
    pin_registers(s);
#pragma unroll 1
    for (; at.left > 1; at.next(blocks_of(tile()))) step<true>(s, tile().q_begin + at.block * kM, at.head);
    step<false>(s, tile().q_begin + at.block * kM, at.head);
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
  __device__ bool must_repeat() {
    if (!several()) return false;
    if (any_non_finite(dk) || any_non_finite(dv)) slot().again = 1;
    named_barrier_sync(kBarrierVote, 256);
    return slot().again;
  }

  template <int kDim, int kColumns>
  __device__ void store_one(const PortableKeyGradient& to, const float (&acc)[kColumns / 2],
                            float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = tile().k_begin + warpgroup * 64 + warp() * 16 + lane() / 4 + half * 8;
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

  __device__ void run() {
    HopperBackwardShared& shared = hopper_shared();
#pragma unroll 1
    for (;; ++round) {
      const int buffer = buffer_of<Config::kSlots>(round);
      mbarrier_wait(smem_address(&shared.tile_full[buffer]), parity_of<Config::kSlots>(round));
      if (uniform(slot().head) < 0) return;
      walk();
      if (!must_repeat()) {
        store_one<Config::kDim, Shape::kColumns>(args.dk, dk, args.scale);
        store_one<Config::kDimV, Shape::kColumnsV>(args.dv, dv, 1.f);
      }
      __syncwarp();
      release(&shared.slot_empty[buffer]);
    }
  }
};

}  // namespace bdcp::kernel
