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
    int thread = threadIdx.x;
    if constexpr (Config::kStaged) asm volatile("" : "+r"(thread));  // else kept, for which registers lack
    return warpgroup * 64 + thread % 128 / 32 * 16 + thread % 32 / 4 + half * 8;
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

  __device__ bool is_kept() const { return tile().state > 0; }
  /// Where this thread's part of the tile's state is.
  __device__ float4* state() const {
    int state = tile().state, thread = threadIdx.x - 128;
    asm volatile("" : "+r"(state), "+r"(thread));  // formed here, not kept
    const i64 index = static_cast<i64>(state < 0 ? -state - 1 : state - 1) * args.groups + slot().group;
    return reinterpret_cast<float4*>(args.states) + index * Shape::kStateFours * (128 * Config::kWgs) + thread;
  }
  __device__ void keep_state() const {
    float4* const to = state();
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 8; ++i)
      to[i * 128 * Config::kWgs] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    to[Shape::kColumns / 8 * 128 * Config::kWgs] = make_float4(row_max[0], row_max[1], row_sum[0], row_sum[1]);
  }
  /// What the tile's rows have before its first block: nothing, or what another item kept.
  __device__ void start_rows() {
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] = 0.f;
    row_max[0] = row_max[1] = negative_infinity();
    row_sum[0] = row_sum[1] = 0.f;
    if (tile().state >= 0) return;
    const float4* const from = state();
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 8; ++i) {
      const float4 four = from[i * 128 * Config::kWgs];
      out[4 * i] = four.x;
      out[4 * i + 1] = four.y;
      out[4 * i + 2] = four.z;
      out[4 * i + 3] = four.w;
    }
    const float4 four = from[Shape::kColumns / 8 * 128 * Config::kWgs];
    row_max[0] = four.x;
    row_max[1] = four.y;
    row_sum[0] = four.z;
    row_sum[1] = four.w;
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
