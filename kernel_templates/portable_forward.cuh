// Forward on tensor cores through mma.sync: sm_80 and newer. One CTA serves one tile of query rows
// (Config::kPack heads of a token side by side, so that short documents still fill rows) and walks its K/V
// blocks from the diagonal leftwards.
//
// Config: kBf16, kDim, kDimV (real head dims), kPack (q heads per row group), kRatio (q heads per K/V head), kM
// rows, kN keys, kWarps, kCtas per SM, kAligned (16-byte rows), kSmem (dynamic shared memory). K/V blocks are
// double buffered.
#pragma once

#include "portable_args.h"
#include "portable_common.cuh"
#include "portable_row_tile.cuh"
#include "portable_rows.cuh"

namespace bdcp::kernel {

struct ForwardShape : RowShape {
  static constexpr int kPitchQ = kPitchK > kPitchV ? kPitchK : kPitchV;  // O is staged in Q's rows
  static constexpr int kBytesQ = Config::kM * kPitchQ * 2;
};

static_assert(sizeof(RowShared) + ForwardShape::kBytesQ + 2 * (ForwardShape::kBytesK + ForwardShape::kBytesV) ==
                  Config::kSmem,
              "the host sizes shared memory the same way");

/// State of one CTA while it walks K/V blocks.
struct ForwardTile : RowTile<PortableForwardArgs> {
  using Shape = ForwardShape;
  static constexpr int kMt = Shape::kMt, kN = Config::kN;

  float out[kMt][Shape::kDimVPad / 8][4];
  float row_max[kMt][2], row_sum[kMt][2];

  __device__ static u32 smem_q() { return smem_address(dynamic_shared()) + sizeof(RowShared); }
  __device__ static u32 smem_k(int stage) {
    return smem_q() + Shape::kBytesQ + stage * (Shape::kBytesK + Shape::kBytesV);
  }
  __device__ static u32 smem_v(int stage) { return smem_k(stage) + Shape::kBytesK; }
  __device__ explicit ForwardTile(const PortableForwardArgs& a) : RowTile(a) {}

  __device__ void load_q() const { load_rows<Config::kDim, Shape::kDimPad, Shape::kPitchQ>(smem_q(), args.q); }
  __device__ void load_k(int stage, int block) const {
    load_keys<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_k(stage), args.k, args.remote_k, block);
  }
  __device__ void load_v(int stage, int block) const {
    load_keys<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_v(stage), args.v, args.remote_v, block);
  }

  __device__ void multiply_qk(float (&s)[kMt][kN / 8][4], u32 keys) const {
    const int lane = ForwardTile::lane(), warp = ForwardTile::warp();
    const u32 a_base = smem_q() + ((warp * kMt * 16 + lane % 16) * Shape::kPitchQ + (lane / 16) * 8) * 2;
    const u32 b_base = keys + ((lane % 8 + lane / 16 * 8) * Shape::kPitchK + (lane / 8 % 2) * 8) * 2;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[mt][n][i] = 0.f;
#pragma unroll 4
    for (int kk = 0; kk < Shape::kDimPad / 16; ++kk) {
      u32 a[kMt][4];
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) ldmatrix_x4(a[mt], a_base + (mt * 16 * Shape::kPitchQ + kk * 16) * 2);
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, b_base + (n * 16 * Shape::kPitchK + kk * 16) * 2);
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
          mma_16x8x16<Config::kBf16>(s[mt][2 * n], a[mt], b[0], b[1]);
          mma_16x8x16<Config::kBf16>(s[mt][2 * n + 1], a[mt], b[2], b[3]);
        }
      }
    }
  }

  __device__ void mask(float (&s)[kMt][kN / 8][4], int block) const {
    const int lane = ForwardTile::lane(), warp = ForwardTile::warp();
    const int column = block + lane % 4 * 2;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 keys = shared().visible[(warp * kMt + mt) * 16 + lane / 4 + half * 8];
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = column + n * 8 + i;
            if (key < keys.x || key >= keys.y) s[mt][n][2 * half + i] = negative_infinity();
          }
      }
  }

  /// Online softmax: s becomes P; O and the running sums are rescaled.
  __device__ void softmax(float (&s)[kMt][kN / 8][4]) {
    const float c = args.scale_log2;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = row_max[mt][half];
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) most = fmaxf(most, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        most = max_over_quad(most);
        // A row that has seen no key yet keeps -inf; 0 stands in so that -inf - -inf never arises.
        const float shift = most == negative_infinity() ? 0.f : most * c;
        // Exactly 1 while the maximum stands, so that a block without visible keys changes no bit.
        const float alpha = row_max[mt][half] == most ? 1.f : exp2_approx((row_max[mt][half] - most) * c);
        row_max[mt][half] = most;
        float sum = 0.f;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[mt][n][i] = exp2_approx(s[mt][n][i] * c - shift);
            sum += s[mt][n][i];
          }
        row_sum[mt][half] = row_sum[mt][half] * alpha + sum;
#pragma unroll
        for (int n = 0; n < Shape::kDimVPad / 8; ++n) {
          out[mt][n][2 * half] *= alpha;
          out[mt][n][2 * half + 1] *= alpha;
        }
      }
  }

  __device__ void multiply_pv(const float (&p)[kMt][kN / 8][4], u32 values) {
    const int lane = ForwardTile::lane();
    const u32 b_base = values + (lane % 16 * Shape::kPitchV + lane / 16 * 8) * 2;
#pragma unroll
    for (int kk = 0; kk < kN / 16; ++kk) {
      u32 a[kMt][4];
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          a[mt][i] =
              pack_16<Config::kBf16>(p[mt][2 * kk + i / 2][i % 2 * 2], p[mt][2 * kk + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < Shape::kDimVPad / 16; ++n) {
        u32 b[4];
        ldmatrix_x4_trans(b, b_base + (kk * 16 * Shape::kPitchV + n * 16) * 2);
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
          mma_16x8x16<Config::kBf16>(out[mt][2 * n], a[mt], b[0], b[1]);
          mma_16x8x16<Config::kBf16>(out[mt][2 * n + 1], a[mt], b[2], b[3]);
        }
      }
    }
  }

  /// All of the tile's blocks, right to left. Needs Q's loads issued (uncommitted is fine).
  __device__ void walk() {
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
      for (int n = 0; n < Shape::kDimVPad / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[mt][n][i] = 0.f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[mt][half] = negative_infinity();
        row_sum[mt][half] = 0.f;
      }
    }
    const int blocks = (shared().tile.k_end - shared().tile.k_begin + kN - 1) / kN;
    if (blocks <= 0) return;
    load_k(0, shared().tile.k_begin + (blocks - 1) * kN);
    load_v(0, shared().tile.k_begin + (blocks - 1) * kN);
    cp_async_commit();
    int stage = 0;
#pragma unroll 1
    for (int block = shared().tile.k_begin + (blocks - 1) * kN; block >= shared().tile.k_begin;
         block -= kN, stage ^= 1) {
      cp_async_wait<0>();
      __syncthreads();  // this block has arrived, and every warp is done with the buffers that are filled next
      if (block > shared().tile.k_begin) {
        load_k(stage ^ 1, block - kN);
        load_v(stage ^ 1, block - kN);
      }
      cp_async_commit();
      const int2 mine = shared().needed[warp()];
      if (block >= mine.y || block + kN <= mine.x) continue;  // none of this warp's rows sees a key here
      float s[kMt][kN / 8][4];
      multiply_qk(s, smem_k(stage));
      if (block < shared().tile.full_begin || block + kN > shared().tile.full_end) mask(s, block);
      softmax(s);
      multiply_pv(s, smem_v(stage));
    }
  }

  __device__ bool any_non_finite() const {
    bool bad = false;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int n = 0; n < Shape::kDimVPad / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) bad |= !(fabsf(out[mt][n][i]) <= 3.4028234e38f);
    return bad;
  }

  /// Writes O and LSE of the warp's rows; rows outside [token_begin, token_end) are left alone. Q's shared rows
  /// are reused.
  __device__ void store(int token_begin, int token_end) {
    const int lane = ForwardTile::lane(), warp = ForwardTile::warp();
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = sum_over_quad(row_sum[mt][half]);
        const float inverse = 1.f / sum;
        const int row = (warp * kMt + mt) * 16 + lane / 4 + half * 8;
#pragma unroll
        for (int n = 0; n < Shape::kDimVPad / 8; ++n) {
          // A row without keys is exact zeros, whatever V holds.
          const float low = sum == 0.f ? 0.f : out[mt][n][2 * half] * inverse;
          const float high = sum == 0.f ? 0.f : out[mt][n][2 * half + 1] * inverse;
          asm volatile(
              "st.shared.b32 [%0], %1;\n" ::"r"(smem_q() + (row * Shape::kPitchQ + n * 8 + lane % 4 * 2) * 2),
              "r"(pack_16<Config::kBf16>(low, high))
              : "memory");
        }
        const int token = token_of(row);
        if (args.lse != nullptr && lane % 4 == 0 && is_real(row) && token >= token_begin && token < token_end) {
          const float lse = sum == 0.f
                                ? negative_infinity()
                                : (row_max[mt][half] * args.scale_log2 + __log2f(sum)) * 0.6931471805599453f;
          args.lse[(shared().head_begin + row % Config::kPack) * args.lse_stride + token] = lse;
        }
      }
    write_rows<Config::kDimV, Shape::kPitchQ>(smem_q(), args.out, token_begin, token_end);
  }
};

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::ForwardShape::kThreads, bdcp::kernel::Config::kCtas)
    portable_forward(const __grid_constant__ bdcp::kernel::PortableForwardArgs args) {
  using namespace bdcp::kernel;
  ForwardTile work(args);
  // Documents that share a tile also share P * V: 0 * NaN would carry one document's NaN into another. A clean
  // result proves that nothing was carried (one pass); otherwise each document is done again with the others'
  // rows absent.
  RowShared& shared = work.shared();
  if (threadIdx.x == 0) {
    shared.only = -1;
    shared.loaded = make_int2(shared.tile.k_begin, shared.tile.k_end);
  }
  __syncthreads();
  for (;;) {
    work.load_q();
    work.find_visible(shared.only < 0 ? shared.tile.seg_begin : shared.only,
                      shared.only < 0 ? shared.tile.seg_end : shared.only + 1);
    work.walk();  // the same blocks in every pass: the same bits
    cp_async_wait_all();
    const bool all = shared.only<0, several = shared.tile.seg_end - shared.tile.seg_begin> 1;
    const bool again = __syncthreads_or(several && all && work.any_non_finite());
    if (!again) {
      work.store(all ? shared.tile.q_begin : args.segments[shared.only].q_begin,
                 all ? shared.tile.q_end : args.segments[shared.only].q_end);
      if (all || shared.only + 1 == shared.tile.seg_end) return;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      shared.only = again ? shared.tile.seg_begin : shared.only + 1;
      shared.loaded = make_int2(args.segments[shared.only].k_begin, args.segments[shared.only].k_end);
    }
    __syncthreads();
  }
}
