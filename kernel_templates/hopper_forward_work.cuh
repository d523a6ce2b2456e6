// What a computing warpgroup of hopper_forward holds of its 64 rows, and what it does to a block: products,
// masks, softmax.
#pragma once

#include "hopper_forward_shape.cuh"

namespace bdcp::kernel {

/// One warpgroup's rows.
struct HopperRowWork {
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

  __device__ explicit HopperRowWork(const HopperForwardArgs& a)
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
};

}  // namespace bdcp::kernel
