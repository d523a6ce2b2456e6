// dQ in a fixed order, for rows whose keys span several of portable_backward's tiles. As in the forward, one
// CTA keeps a tile of query rows (Config::kPack heads of a token side by side) and walks its K/V blocks from
// the diagonal leftwards; S and dP are formed again, and dS goes from accumulators to the next product's
// operand without leaving the registers. Runs after portable_backward_delta. No two documents share a tile, so
// that no row meets another document's keys.
//
// Config: kBf16, kDim, kDimV, kPack, kRatio, kM, kN, kWarps, kCtas, kAligned, kSmem as in portable_forward.
// kStagesV: buffers for V, 2 or, where shared memory is short, 1. K has two.
#pragma once

#include "portable_args.h"
#include "portable_common.cuh"
#include "portable_mma.cuh"
#include "portable_row_tile.cuh"
#include "portable_rows.cuh"

namespace bdcp::kernel {

struct DqShape : RowShape {
  static constexpr int kBytesQ = Config::kM * kPitchK * 2;  // dQ is staged in Q's rows
  static constexpr int kBytesDo = Config::kM * kPitchV * 2;
};

/// Q, dO, the K buffers and the V buffers follow.
struct DqShared : RowShared {
  float2 row[Config::kM];  // LSE * log2(e) and delta
};

static_assert(sizeof(DqShared) + DqShape::kBytesQ + DqShape::kBytesDo + 2 * DqShape::kBytesK +
                      Config::kStagesV * DqShape::kBytesV ==
                  Config::kSmem,
              "the host sizes shared memory the same way");

struct DqTile : RowTile<PortableDqArgs> {
  using Shape = DqShape;
  static constexpr int kMt = Shape::kMt, kN = Config::kN;

  float dq[kMt][Shape::kDimPad / 8][4];

  __device__ explicit DqTile(const PortableDqArgs& a) : RowTile(a) {}

  __device__ static float2* row_values() { return static_cast<DqShared&>(shared()).row; }
  __device__ static u32 smem_q() { return smem_address(dynamic_shared()) + sizeof(DqShared); }
  __device__ static u32 smem_do() { return smem_q() + Shape::kBytesQ; }
  __device__ static u32 smem_k(int stage) { return smem_do() + Shape::kBytesDo + stage * Shape::kBytesK; }
  __device__ static u32 smem_v(int stage) {
    return smem_k(2) + (Config::kStagesV == 1 ? 0 : stage * Shape::kBytesV);
  }

  /// Everything of the tile's rows.
  __device__ void load_tile() const {
    load_rows<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_q(), args.q);
    load_rows<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_do(), args.dout);
    for (int row = thread(); row < Config::kM; row += Shape::kThreads) {
      float2 value = make_float2(0.f, 0.f);
      if (is_real(row)) {
        const i64 head = shared().head_begin + row % Config::kPack, token = token_of(row);
        value = make_float2(args.lse[head * args.lse_stride + token] * kLog2E,
                            args.delta[head * args.rows + token]);
      }
      row_values()[row] = value;
    }
  }
  __device__ void load_k(int stage, int block) const {
    load_keys<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_k(stage), args.k, args.remote_k, block);
  }
  __device__ void load_v(int stage, int block) const {
    load_keys<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_v(stage), args.v, args.remote_v, block);
  }

  /// s += the warp's rows of A times a block's rows of B, over kPad columns.
  template <int kPad, int kPitch>
  __device__ static void multiply(float (&s)[kMt][kN / 8][4], u32 a_rows, u32 b_rows) {
    const int lane = DqTile::lane(), warp = DqTile::warp();
    const u32 a_base = a_rows + ((warp * kMt * 16 + lane % 16) * kPitch + lane / 16 * 8) * 2;
    const u32 b_base = b_rows + ((lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 8) * 2;
#pragma unroll 4
    for (int kk = 0; kk < kPad / 16; ++kk) {
      u32 a[kMt][4];
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) ldmatrix_x4(a[mt], a_base + (mt * 16 * kPitch + kk * 16) * 2);
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        u32 b[4];
        ldmatrix_x4(b, b_base + (n * 16 * kPitch + kk * 16) * 2);
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
          mma_16x8x16<Config::kBf16>(s[mt][2 * n], a[mt], b[0], b[1]);
          mma_16x8x16<Config::kBf16>(s[mt][2 * n + 1], a[mt], b[2], b[3]);
        }
      }
    }
  }

  /// dS of the warp's rows and a block of keys.
  __device__ void block_scores(float (&ds)[kMt][kN / 8][4], int stage, int block, bool masked) const {
    float p[kMt][kN / 8][4];
    clear(p);
    multiply<Shape::kDimPad, Shape::kPitchK>(p, smem_q(), smem_k(stage));
    const int lane = DqTile::lane(), warp = DqTile::warp();
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 row = row_values()[(warp * kMt + mt) * 16 + lane / 4 + half * 8];
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            p[mt][n][i] = exp2_approx(p[mt][n][i] * args.scale_log2 - row.x);
            ds[mt][n][i] = -row.y;
          }
      }
    multiply<Shape::kDimVPad, Shape::kPitchV>(ds, smem_do(), smem_v(stage));
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) ds[mt][n][i] *= p[mt][n][i];
    if (masked) hide(ds, block);
  }

  /// Zeroes dS of what a row does not see, and of a row with a single key: its softmax is constant, and dS a
  /// rounding error. Selected, not multiplied: P, dP and delta of a hidden pair may be anything.
  __device__ static void hide(float (&ds)[kMt][kN / 8][4], int block) {
    const int lane = DqTile::lane(), warp = DqTile::warp();
    const int column = block + lane % 4 * 2;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int2 keys = shared().visible[(warp * kMt + mt) * 16 + lane / 4 + half * 8];
        if (keys.y - keys.x == 1) keys.y = keys.x;
#pragma unroll
        for (int n = 0; n < kN / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = column + n * 8 + i;
            if (key < keys.x || key >= keys.y) ds[mt][n][2 * half + i] = 0.f;
          }
      }
  }

  /// dq += dS K.
  __device__ void accumulate(const u32 (&a)[kMt][kN / 16][4], u32 keys) {
    const int lane = DqTile::lane();
    const u32 b_base = keys + (lane % 16 * Shape::kPitchK + lane / 16 * 8) * 2;
#pragma unroll
    for (int kk = 0; kk < kN / 16; ++kk)
#pragma unroll
      for (int n = 0; n < Shape::kDimPad / 16; ++n) {
        u32 b[4];
        ldmatrix_x4_trans(b, b_base + (kk * 16 * Shape::kPitchK + n * 16) * 2);
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt) {
          mma_16x8x16<Config::kBf16>(dq[mt][2 * n], a[mt][kk], b[0], b[1]);
          mma_16x8x16<Config::kBf16>(dq[mt][2 * n + 1], a[mt][kk], b[2], b[3]);
        }
      }
  }

  /// All of the tile's blocks, right to left. Needs the rows' loads issued.
  __device__ void walk() {
    clear(dq);
    const int blocks = RowTile::blocks();
    if (blocks == 0) return;
    load_k(0, shared().tile.k_begin + (blocks - 1) * kN);
    load_v(0, shared().tile.k_begin + (blocks - 1) * kN);
    int stage = 0;
#pragma unroll 1
    for (int block = shared().tile.k_begin + (blocks - 1) * kN; block >= shared().tile.k_begin;
         block -= kN, stage ^= 1) {
      cp_async_wait_all();
      __syncthreads();  // this block has arrived, and every warp is done with the buffers that are filled next
      const bool more = block > shared().tile.k_begin;
      if (more) {
        load_k(stage ^ 1, block - kN);
        if constexpr (Config::kStagesV == 2) load_v(stage ^ 1, block - kN);
      }
      const bool sees = is_needed(block);
      u32 a[kMt][kN / 16][4];
      if (sees) {
        float ds[kMt][kN / 8][4];
        block_scores(ds, stage, block, is_masked(block));
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
          for (int kk = 0; kk < kN / 16; ++kk)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              a[mt][kk][i] = pack_16<Config::kBf16>(ds[mt][2 * kk + i / 2][i % 2 * 2],
                                                    ds[mt][2 * kk + i / 2][i % 2 * 2 + 1]);
      }
      if constexpr (Config::kStagesV == 1) {
        __syncthreads();  // every warp is done with V
        if (more) load_v(0, block - kN);
      }
      if (sees) accumulate(a, smem_k(stage));
    }
  }

  /// Writes dQ of the warp's rows.
  __device__ void store() const {
    const int lane = DqTile::lane(), warp = DqTile::warp();
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (warp * kMt + mt) * 16 + lane / 4 + half * 8;
        const int2 keys = shared().visible[row];
        // A row without keys is exact zeros, whatever K holds.
        const bool zero = keys.x == keys.y;
#pragma unroll
        for (int n = 0; n < Shape::kDimPad / 8; ++n) {
          const float low = zero ? 0.f : dq[mt][n][2 * half] * args.scale;
          const float high = zero ? 0.f : dq[mt][n][2 * half + 1] * args.scale;
          asm volatile(
              "st.shared.b32 [%0], %1;\n" ::"r"(smem_q() + (row * Shape::kPitchK + n * 8 + lane % 4 * 2) * 2),
              "r"(pack_16<Config::kBf16>(low, high))
              : "memory");
        }
      }
    write_rows<Config::kDim, Shape::kPitchK>(smem_q(), args.dq, shared().tile.q_begin, shared().tile.q_end);
  }
};

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::DqShape::kThreads, bdcp::kernel::Config::kCtas)
    portable_backward_dq(const __grid_constant__ bdcp::kernel::PortableDqArgs args) {
  using namespace bdcp::kernel;
  wait_for_previous_kernel();
  if (past_end(args.tile_count, blockIdx.x / args.head_groups)) return;
  DqTile work(args);
  if (threadIdx.x == 0) work.shared().loaded = make_int2(work.shared().tile.k_begin, work.shared().tile.k_end);
  __syncthreads();
  work.load_tile();
  work.find_visible(work.shared().tile.seg_begin, work.shared().tile.seg_end);
  work.walk();
  cp_async_wait_all();
  __syncthreads();  // without blocks, Q may still be arriving where dQ is staged
  work.store();
}
