// The warpgroups of hopper_forward that compute: 64 rows each.
#pragma once

#include "hopper_forward_apart.cuh"

namespace bdcp::kernel {

struct HopperConsumer : HopperSharedRows {
  using HopperSharedRows::HopperSharedRows;

  /// P * V of the block before `block` runs beside the softmax of this one.
  template <bool kMasked>
  __device__ void step(int block, bool accumulate) {
    HopperShared& shared = hopper_shared();
    float s[kN / 2], alpha[2];
    await(shared.k_full, used + 1);
    await_turn();
    pin_eights(out);
    pin_eights(p);
    multiply_qk(s, used + 1);
    await(shared.v_full, used);
    multiply_pv(used, accumulate);
    pass_turn();
    wgmma_wait<1>();
    pin_eights(s);
    release(&shared.k_empty[buffer_of<Config::kStages>(used + 1)]);
    if constexpr (kMasked) {
      int end[2];
      for (int half = 0; half < 2; ++half) end[half] = token_of(half) + tile().shift + 1;
      mask_end(s, end, tile().k_begin + block * kN);
    }
    softmax<false, kMasked>(s, alpha);
    wgmma_wait<0>();
    pin_eights(out);
    pin_eights(p);
    release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    ++used;
    pack_p(s);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] *= alpha[i / 2 % 2];
  }

  /// The tile's first block, the last of its keys, once its S is there.
  __device__ void first_softmax(float (&s)[kN / 2], const Visible& keys) {
    release(&hopper_shared().k_empty[buffer_of<Config::kStages>(used)]);
    const int blocks = blocks_of(tile());
    if (blocks > tile().unmasked) {
      const int begin = tile().k_begin + (blocks - 1) * kN;
      mask_end(s, keys.end, begin);
      if (tile().rows_at >= 0) mask_begin(s, keys.begin, begin);
    }
    float alpha[2];
    softmax<!Config::kStaged, true>(s, alpha);
    if constexpr (Config::kStaged)
#pragma unroll
      for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] *= alpha[i / 2 % 2];
  }
  __device__ void open_tile() {
    float s[kN / 2];
    if constexpr (Config::kStaged) start_rows();
    const Visible keys = visible();  // arrives while Q does
    barrier_wait(smem_address(&hopper_shared().q_full[buffer()]), parity_of<Config::kSlots>(round));
    await(hopper_shared().k_full, used);
    multiply_qk(s, used);
    wgmma_wait<0>();
    pin_eights(s);
    first_softmax(s, keys);
    pack_p(s);
  }

  /// The tile's blocks after the first, right to left, but for the last product. Whether that adds to others.
  __device__ bool walk() {
    const int unmasked = uniform(tile().unmasked);
    int block = uniform(blocks_of(tile())) - 2;
    bool accumulate = Config::kStaged;
#pragma unroll 1
    for (; block >= unmasked; --block, accumulate = true) step<true>(block, accumulate);
#pragma unroll 1
    for (; block >= 0; --block, accumulate = true) step<false>(block, accumulate);
    return accumulate;
  }

  /// The last product of the tile alone.
  __device__ void close_tile(bool accumulate) {
    HopperShared& shared = hopper_shared();
    await(shared.v_full, used);
    pin_eights(out);
    pin_eights(p);
    multiply_pv(used, accumulate);
    wgmma_wait<0>();
    pin_eights(out);
    pin_eights(p);
    if (tile().rows_at >= 0) keep_apart();
    release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    // No branch around finish(): after one, what every warp has alike is not known as such any more.
    if (Config::kStaged && is_kept()) keep_state();
    finish();
  }
  /// Keeps step with the other warpgroups in a tile where this one has no rows.
  __device__ void skip(int blocks) {
    HopperShared& shared = hopper_shared();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block, ++used) {
      await(shared.k_full, used);
      release(&shared.k_empty[buffer_of<Config::kStages>(used)]);
      await(shared.v_full, used);
      release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    }
  }

  /// O into Q's rows, LSE to memory; of a tile that is kept neither counts.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over_quad(row_sum[half]);
      const float inverse = 1.f / sum;
      if (args.lse != nullptr && lane() % 4 == 0 && is_real(half) && !(Config::kStaged && is_kept())) {
        const float lse = sum == 0.f ? negative_infinity()
                                     : (row_max[half] * args.scale_log2 + __log2f(sum)) * 0.6931471805599453f;
        args.lse[(slot().group * Config::kPack + row_of(half) % Config::kPack) * args.lse_stride +
                 token_of(half)] = lse;
      }
#pragma unroll
      for (int i = 2 * half; i < Shape::kColumns / 2; i += 4) {
        // A row without keys is exact zeros, whatever V holds.
        out[i] = sum == 0.f ? 0.f : out[i] * inverse;
        out[i + 1] = sum == 0.f ? 0.f : out[i + 1] * inverse;
      }
    }
    named_barrier(4 + warpgroup, 128);  // every warp is done with these rows of Q
    const int row = warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() % 16;
    const u32 base = q_address(buffer()) + row * 128;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 16; ++i) {
      const int chunk = i % 4 * 2 + lane() / 16;
      stmatrix_x4(base + i / 4 * Shape::kPanelQ + ((chunk ^ row % 8) << 4),
                  pack_16<Config::kBf16>(out[8 * i], out[8 * i + 1]),
                  pack_16<Config::kBf16>(out[8 * i + 2], out[8 * i + 3]),
                  pack_16<Config::kBf16>(out[8 * i + 4], out[8 * i + 5]),
                  pack_16<Config::kBf16>(out[8 * i + 6], out[8 * i + 7]));
    }
    fence_async_proxy();
    __syncwarp();
    release(&hopper_shared().o_full[buffer()]);
  }

  /// Waits until the producer names a tile; false after the last one.
  __device__ bool await_tile() const {
    barrier_wait(smem_address(&hopper_shared().tile_full[buffer()]), parity_of<Config::kSlots>(round));
    return uniform(slot().group) >= 0;
  }
  __device__ void run() {
    if (Config::kWgs > 1 && warpgroup == Config::kWgs - 1) named_barrier_arrive(1, 256);
#pragma unroll 1
    for (; await_tile(); ++round) {
      const int blocks = uniform(blocks_of(tile()));
      active = uniform(min(Config::kWgs, ((tile().q_end - tile().q_begin) * Config::kPack + 63) / 64));
      if (warpgroup < active && blocks > 0) {
        open_tile();
        close_tile(walk());
        ++used;
      } else if (warpgroup < active) {
#pragma unroll
        for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] = 0.f;
        row_sum[0] = row_sum[1] = 0.f;
        finish();
      } else {
        skip(blocks);
        release(&hopper_shared().o_full[buffer()]);
      }
    }
  }
};

}  // namespace bdcp::kernel
