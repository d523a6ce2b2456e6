// What portable_backward does to a block of rows: scores, P, dS, and dQ.
#pragma once

#include "portable_backward_load.cuh"

namespace bdcp::kernel {

struct BackwardProducts : BackwardLoads {
  using BackwardLoads::BackwardLoads;

  /// s = the warp's rows of A (keys) times its half of B's rows (a block), over kPad columns.
  template <int kPad, int kPitch>
  __device__ void multiply_transposed(float (&s)[kKt][kHalfM / 8][4], u32 a_rows, u32 b_rows) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const u32 a_base = a_rows + ((w / 2 * 16 * kKt + l % 16) * kPitch + l / 16 * 8) * 2;
    const u32 b_base = b_rows + ((w % 2 * kHalfM + l % 8 + l / 16 * 8) * kPitch + l / 8 % 2 * 8) * 2;
    clear(s);
    multiply_ahead<Config::kBf16, kPad / 16, kAheadScores>(
        s,
        [&](int kk, u32(&a)[kKt][4]) {
#pragma unroll
          for (int kt = 0; kt < kKt; ++kt) ldmatrix_x4(a[kt], a_base + (kt * 16 * kPitch + kk * 16) * 2);
        },
        [&](int kk, int n, u32(&b)[4]) { ldmatrix_x4(b, b_base + (n * 16 * kPitch + kk * 16) * 2); });
  }

  /// acc (the warp's keys, its half of kPad columns) += A ([key][row] in shared memory) times the block's rows.
  template <int kPad, int kPitch>
  __device__ void accumulate(float (&acc)[kKt][kPad / 16][4], u32 a_keys, u32 b_rows) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const u32 a_base = a_keys + ((w / 2 * 16 * kKt + l % 16) * Shape::kPitchS + l / 16 * 8) * 2;
    const u32 b_base = b_rows + (l % 16 * kPitch + w % 2 * (kPad / 2) + l / 16 * 8) * 2;
    multiply_ahead<Config::kBf16, kM / 16, kAheadGradients>(
        acc,
        [&](int kk, u32(&a)[kKt][4]) {
#pragma unroll
          for (int kt = 0; kt < kKt; ++kt)
            ldmatrix_x4(a[kt], a_base + (kt * 16 * Shape::kPitchS + kk * 16) * 2);
        },
        [&](int kk, int n, u32(&b)[4]) { ldmatrix_x4_trans(b, b_base + (kk * 16 * kPitch + n * 16) * 2); });
  }

  /// Stores accumulators of keys x rows as 16-bit [key][row]; accumulator pairs run along rows.
  __device__ void store_scores(u32 target, const float (&s)[kKt][kHalfM / 8][4]) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const u32 base = target + ((w / 2 * 16 * kKt + l / 4) * Shape::kPitchS + w % 2 * kHalfM + l % 4 * 2) * 2;
#pragma unroll
    for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
      for (int n = 0; n < kHalfM / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          asm volatile(
              "st.shared.b32 [%0], %1;\n" ::"r"(base + ((kt * 16 + half * 8) * Shape::kPitchS + n * 8) * 2),
              "r"(pack_16<Config::kBf16>(s[kt][n][2 * half], s[kt][n][2 * half + 1]))
              : "memory");
  }

  __device__ void multiply_dp(float (&dp)[kKt][kHalfM / 8][4], int stage) const {
    if constexpr (Config::kStagesDo == 1) barrier_wait(landed_do(), turn % 2);
    multiply_transposed<Shape::kDimVPad, Shape::kPitchV>(dp, smem_v, smem_do(stage));
  }

  /// P and dS of one block of rows, into shared memory; `claim` returns once P, dS and the other buffers are
  /// free.
  template <class Claim>
  __device__ void block_scores(int stage, int block, bool masked, Claim claim) const {
    // Scores and dP one right after the other keep the tensor cores busy, if registers hold both.
    constexpr bool kTogether = kKt * kHalfM <= 64;
    float s[kKt][kHalfM / 8][4], dp[kKt][kHalfM / 8][4];
    multiply_transposed<Shape::kDimPad, Shape::kPitchK>(s, smem_k, smem_q(stage));
    if constexpr (kTogether) multiply_dp(dp, stage);
    const int l = formed_again(lane), w = formed_again(warp);
    const int first = w % 2 * kHalfM + l % 4 * 2;  // the thread's first row in the block
#pragma unroll
    for (int n = 0; n < kHalfM / 8; ++n) {
      float2 lse = *reinterpret_cast<const float2*>(&shared.lse[stage][first + n * 8]);
      lse.x *= kLog2E;
      lse.y *= kLog2E;
#pragma unroll
      for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          s[kt][n][i] = exp2_approx(s[kt][n][i] * args.scale_log2 - (i % 2 ? lse.y : lse.x));
    }
    if (masked) hide<false>(s, block);
    if constexpr (!kTogether) {
      claim();
      store_scores(smem_p, s);
      multiply_dp(dp, stage);
    }
#pragma unroll
    for (int n = 0; n < kHalfM / 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][first + n * 8]);
#pragma unroll
      for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[kt][n][i] = s[kt][n][i] * (dp[kt][n][i] - (i % 2 ? delta.y : delta.x));
    }
    // Selected again, not left to 0 * dP: dP and delta of a hidden pair may be anything.
    if (masked) hide<true>(dp, block);
    if constexpr (kTogether) {
      claim();
      store_scores(smem_p, s);
    }
    store_scores(smem_ds, dp);
  }

  /// Zeroes what a key's rows do not see; for dS also where they see nothing else.
  template <bool kGradient>
  __device__ void hide(float (&s)[kKt][kHalfM / 8][4], int block) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const int first = block + w % 2 * kHalfM + l % 4 * 2;
#pragma unroll
    for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const KeyRows seen = shared.keys[(w / 2 * kKt + kt) * 16 + l / 4 + half * 8];
        const int begin = kGradient ? seen.steep : seen.first;
#pragma unroll
        for (int n = 0; n < kHalfM / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int row = first + n * 8 + i;
            if (row < begin || row >= seen.end) s[kt][n][2 * half + i] = 0.f;
          }
      }
  }

  /// The warp's part of the block's dQ, from all warps' dS.
  __device__ void multiply_dq(float (&dq)[kRt][Shape::kDqColumns / 8][4]) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const u32 a_base = smem_ds + ((l / 16 * 8 + l % 8) * Shape::kPitchS + w % 2 * kHalfM + l / 8 % 2 * 8) * 2;
    const u32 b_base = smem_k + (l % 16 * Shape::kPitchK + w / 2 * Shape::kDqColumns + l / 16 * 8) * 2;
    clear(dq);
    multiply_ahead<Config::kBf16, kN / 16, kAheadScores>(
        dq,
        [&](int kk, u32(&a)[kRt][4]) {
#pragma unroll
          for (int rt = 0; rt < kRt; ++rt)
            ldmatrix_x4_trans(a[rt], a_base + (kk * 16 * Shape::kPitchS + rt * 16) * 2);
        },
        [&](int kk, int n, u32(&b)[4]) {
          ldmatrix_x4_trans(b, b_base + (kk * 16 * Shape::kPitchK + n * 16) * 2);
        });
  }

  /// Writes it to its rows, or adds it to their sums.
  __device__ void store_dq(const float (&dq)[kRt][Shape::kDqColumns / 8][4], int head, int block) {
    const int l = formed_again(lane), w = formed_again(warp);
    const int column = w / 2 * Shape::kDqColumns;
    const bool whole = shared.tile.whole;
#pragma unroll
    for (int rt = 0; rt < kRt; ++rt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = block + w % 2 * kHalfM + rt * 16 + l / 4 + half * 8;
        const bool real = row >= shared.rows.x && row < shared.rows.y;
        if (whole) {
          u16* target =
              static_cast<u16*>(args.dq.data) + row * args.dq.row_stride + head * args.dq.head_stride + column;
          store_row<Config::kBf16, Config::kAligned, Shape::kDqColumns / 8>(
              target, Config::kDim - column, real, [&](int n, int i) {
                const float value = dq[rt][n][2 * half + i] * args.scale;
                bad |= real && !(fabsf(value) <= 3.4028234e38f);
                return value;
              });
        } else if (real) {
          float* target =
              args.dq_sum + (static_cast<i64>(row) * args.heads_q + head) * kSumPitch + column + l % 4 * 4;
#pragma unroll
          for (int n = 0; n < Shape::kDqColumns / 8; n += 2) {
            if (kSumPitch != Shape::kDimPad && column + n * 8 >= kSumPitch) continue;
            add_four(target + n * 8, dq[rt][n][2 * half], dq[rt][n][2 * half + 1], dq[rt][n + 1][2 * half],
                     dq[rt][n + 1][2 * half + 1]);
          }
        }
      }
  }
};

}  // namespace bdcp::kernel
