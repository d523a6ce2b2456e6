// The warpgroups of hopper_forward that compute: 64 rows each.
#pragma once

#include "hopper_forward_shape.cuh"

namespace bdcp::kernel {

/// One warpgroup's rows.
struct HopperConsumer {
  using Shape = HopperShape;
  static constexpr int kN = Config::kN;

  const HopperForwardArgs& args;
  float out[Shape::kColumns / 2];
  u32 p[kN / 4];
  float row_max[2], row_sum[2];
  const int warpgroup;
  int active;    // warpgroups with rows in this tile
  int used = 0;  // blocks of V, of this tile and those before; K is one ahead
  int round = 0;

  __device__ explicit HopperConsumer(const HopperForwardArgs& a)
      : args(a), warpgroup(uniform(static_cast<int>(threadIdx.x) / 128 - 1)) {}

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ int row_of(int half) const {
    return warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() / 4 + half * 8;
  }
  /// The tile is read from shared memory where it is needed: its fields would cost registers of the main loop.
  __device__ int buffer() const { return buffer_of<Config::kSlots>(round); }
  __device__ const HopperSlot& slot() const { return hopper_shared().slots[buffer()]; }
  __device__ const HopperTile& tile() const { return slot().tile; }
  __device__ int token_of(int half) const { return tile().q_begin + row_of(half) / Config::kPack; }
  /// Against the tile's count, since rows past the last one may not fit 32 bits.
  __device__ bool is_real(int half) const {
    return row_of(half) / Config::kPack < tile().q_end - tile().q_begin;
  }

  __device__ static void release(const u64* empty) {
    __syncwarp();  // no lane still waits for the phase that this ends
    if (lane() == 0) barrier_arrive(smem_address(empty));
  }
  __device__ void await(const u64* full, int use) const {
    barrier_wait(smem_address(full + buffer_of<Config::kStages>(use)), parity_of<Config::kStages>(use));
  }
  /// Turns of the warpgroups at issuing products; barrier 1 + warpgroup is its turn.
  __device__ void await_turn() const {
    if (active == Config::kWgs && Config::kWgs > 1) named_barrier(1 + warpgroup, 256);
  }
  __device__ void pass_turn() const {
    if (active == Config::kWgs && Config::kWgs > 1)
      named_barrier_arrive(1 + (warpgroup + 1) % Config::kWgs, 256);
  }

  /// S = Q * K, issued.
  __device__ void multiply_qk(float (&s)[kN / 2], int use) const {
    const u64 a = descriptor(q_address(buffer()) + warpgroup * 64 * 128, 0),
              b = descriptor(k_address(buffer_of<Config::kStages>(use)), 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kSteps; ++k)
      Wgmma<kN>::template from_shared<Config::kBf16, 0, 0>(s, a + (k / 4 * Shape::kPanelQ + k % 4 * 32) / 16,
                                                           b + (k / 4 * Shape::kPanelK + k % 4 * 32) / 16,
                                                           k > 0);
    wgmma_commit();
  }
  /// O += P * V, issued.
  __device__ void multiply_pv(int use, bool accumulate) {
    const u64 b = descriptor(v_address(buffer_of<Config::kStages>(use)), Shape::kPanelK);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kN / 16; ++k)
      Wgmma<Shape::kColumns>::template from_registers<Config::kBf16, 1>(out, p + 4 * k, b + k * 2048 / 16,
                                                                        k > 0 || accumulate);
    wgmma_commit();
  }

  /// The key positions that rows r and r + 8 see.
  struct Visible {
    int begin[2], end[2];
  };
  __device__ Visible visible() const {
    Visible keys;
    const HopperTile& tile = this->tile();
    const int rows_at = tile.rows_at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keys.begin[half] = tile.k_begin;
      keys.end[half] = token_of(half) + tile.shift + 1;
      if (rows_at >= 0) {
        const KeyRange none{0, 0};
        const KeyRange range = is_real(half) ? args.visible[rows_at + row_of(half) / Config::kPack] : none;
        keys.begin[half] = range.begin;
        keys.end[half] = range.end;
      }
    }
    return keys;
  }
  /// Positions from keys.end on, `begin` being that of the block.
  __device__ static void mask_end(float (&s)[kN / 2], const int (&end)[2], int begin) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int columns = end[half] - begin - lane() % 4 * 2;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        if (i / 4 * 8 >= columns) s[i] = negative_infinity();
        if (i / 4 * 8 + 1 >= columns) s[i + 1] = negative_infinity();
      }
    }
  }
  __device__ static void mask_begin(float (&s)[kN / 2], const int (&first)[2], int begin) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int columns = first[half] - begin - lane() % 4 * 2;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        if (i / 4 * 8 < columns) s[i] = negative_infinity();
        if (i / 4 * 8 + 1 < columns) s[i + 1] = negative_infinity();
      }
    }
  }

  /// Online softmax: S becomes P (in fp32), the running sums follow; alpha is what O must be scaled by.
  template <bool kFirst, bool kMasked>
  __device__ void softmax(float (&s)[kN / 2], float (&alpha)[2]) {
    const float c = args.scale_log2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = kFirst ? s[2 * half] : fmaxf(row_max[half], s[2 * half]);
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
      most = max_over_quad(most);
      // A row that has seen no key yet keeps -inf; 0 stands in so that -inf - -inf never arises.
      const float shift = kMasked && most == negative_infinity() ? 0.f : most * c;
      if constexpr (!kFirst) {
        alpha[half] = exp2_approx(row_max[half] * c - shift);
        row_sum[half] *= alpha[half];
      } else {
        row_sum[half] = 0.f;
      }
      row_max[half] = most;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        s[i] = exp2_approx(s[i] * c - shift);
        s[i + 1] = exp2_approx(s[i + 1] * c - shift);
        row_sum[half] += s[i] + s[i + 1];
      }
    }
  }
  __device__ void pack_p(const float (&s)[kN / 2]) {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) p[i] = pack_16<Config::kBf16>(s[2 * i], s[2 * i + 1]);
  }

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
    softmax<true, true>(s, alpha);
  }
  __device__ void open_tile() {
    float s[kN / 2];
    const Visible keys = visible();  // arrives while Q does
    barrier_wait(smem_address(&hopper_shared().q_full[buffer()]), parity_of<Config::kSlots>(round));
    await(hopper_shared().k_full, used);
    multiply_qk(s, used);
    wgmma_wait<0>();
    pin_eights(s);
    first_softmax(s, keys);
    pack_p(s);
  }

  /// The tile's blocks after the first, right to left, but for the last product. Whether there were any.
  __device__ bool walk() {
    const int unmasked = uniform(tile().unmasked);
    int block = uniform(blocks_of(tile())) - 2;
    bool accumulate = false;
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

  /// O into Q's rows, LSE to memory.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over_quad(row_sum[half]);
      const float inverse = 1.f / sum;
      if (args.lse != nullptr && lane() % 4 == 0 && is_real(half)) {
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
