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
#include "portable_mma.cuh"
#include "portable_row_tile.cuh"
#include "portable_rows.cuh"

namespace bdcp::kernel {

struct ForwardShape : RowShape {
  static constexpr int kPitchQ = kPitchK > kPitchV ? kPitchK : kPitchV;  // O is staged in Q's rows
  static constexpr int kBytesQ = Config::kM * kPitchQ * 2;
};

/// Q and the K/V buffers follow.
struct ForwardShared : RowShared {
  float sums[2 * RowShape::kMt][RowShape::kThreads];  // running sums of P, see kTight
  unsigned long long landed[2];  // mbarriers, see kSplit: a buffer's keys (with the first, Q too) have arrived
  unsigned long long done;       // all warps are done with a block
};

static_assert(sizeof(ForwardShared) + ForwardShape::kBytesQ +
                      2 * (ForwardShape::kBytesK + ForwardShape::kBytesV) ==
                  Config::kSmem,
              "the host sizes shared memory the same way");

/// State of one CTA while it walks K/V blocks.
struct ForwardTile : RowTile<PortableForwardArgs> {
  using Shape = ForwardShape;
  static constexpr int kMt = Shape::kMt, kN = Config::kN;
  static constexpr int kAhead = 2;  // B fragments in flight
  // With O this wide registers are short, and rescaling O is dear: the sums stand in shared memory, and O is
  // rescaled only where a maximum has moved.
  static constexpr bool kTight = Shape::kDimVPad > 64 && kMt*(Shape::kDimVPad + kN) > 320;

  // Alone on its SM, a CTA's warps wait at split barriers, so that one's softmax runs under another's products;
  // of two CTAs each fills the other's gaps, and a plain barrier costs less.
  static constexpr bool kSplit = Config::kCtas == 1;

  float out[kMt][Shape::kDimVPad / 8][4];
  float row_max[kMt][2], sum_registers[kMt][2];

  __device__ static ForwardShared& shared() { return static_cast<ForwardShared&>(RowTile::shared()); }
  __device__ static u32 smem_q() { return smem_address(dynamic_shared()) + sizeof(ForwardShared); }
  __device__ static u32 smem_k(int stage) {
    return smem_q() + Shape::kBytesQ + stage * (Shape::kBytesK + Shape::kBytesV);
  }
  __device__ static u32 smem_v(int stage) { return smem_k(stage) + Shape::kBytesK; }
  __device__ static u32 landed(int stage) { return smem_address(&shared().landed[stage]); }
  __device__ static u32 done() { return smem_address(&shared().done); }

  __device__ explicit ForwardTile(const PortableForwardArgs& a) : RowTile(a) {}

  /// For one walk over the tile's blocks.
  __device__ static void init_barriers() {
    for (int stage = 0; stage < 2; ++stage) barrier_init(landed(stage), Shape::kThreads);
    barrier_init(done(), Config::kWarps);
  }
  __device__ static void invalidate_barriers() {
    for (int stage = 0; stage < 2; ++stage) barrier_invalidate(landed(stage));
    barrier_invalidate(done());
  }

  /// The thread's running sum of a row.
  __device__ float& row_sum(int mt, int half) {
    if constexpr (kTight) return shared().sums[2 * mt + half][thread()];
    return sum_registers[mt][half];
  }

  __device__ void load_q() const { load_rows<Config::kDim, Shape::kDimPad, Shape::kPitchQ>(smem_q(), args.q); }
  __device__ void load_k(int stage, int block) const {
    load_keys<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_k(stage), args.k, args.remote_k, block);
  }
  __device__ void load_v(int stage, int block) const {
    load_keys<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_v(stage), args.v, args.remote_v, block);
  }
  __device__ void load_block(int stage, int block) const {
    load_k(stage, block);
    load_v(stage, block);
    if constexpr (kSplit && Config::kAligned) barrier_arrive_after_copies(landed(stage));
    if constexpr (kSplit && !Config::kAligned) barrier_arrive(landed(stage));  // rows went through registers
  }

  __device__ void multiply_qk(float (&s)[kMt][kN / 8][4], u32 keys) const {
    const int lane = ForwardTile::lane(), warp = ForwardTile::warp();
    const u32 a_base = smem_q() + ((warp * kMt * 16 + lane % 16) * Shape::kPitchQ + (lane / 16) * 8) * 2;
    const u32 b_base = keys + ((lane % 8 + lane / 16 * 8) * Shape::kPitchK + (lane / 8 % 2) * 8) * 2;
    clear(s);
    multiply_ahead<Config::kBf16, Shape::kDimPad / 16, kAhead>(
        s,
        [&](int kk, u32(&a)[kMt][4]) {
#pragma unroll
          for (int mt = 0; mt < kMt; ++mt)
            ldmatrix_x4(a[mt], a_base + (mt * 16 * Shape::kPitchQ + kk * 16) * 2);
        },
        [&](int kk, int n, u32(&b)[4]) { ldmatrix_x4(b, b_base + (n * 16 * Shape::kPitchK + kk * 16) * 2); });
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
    float shift[kMt][2], alpha[kMt][2];
    bool moved = false;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = row_max[mt][half];
#pragma unroll
        for (int n = 0; n < kN / 8; ++n) most = fmaxf(most, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        most = max_over_quad(most);
        // A row that has seen no key yet keeps -inf; 0 stands in so that -inf - -inf never arises.
        shift[mt][half] = most == negative_infinity() ? 0.f : most * c;
        // Exactly 1 while the maximum stands, so that a block without visible keys changes no bit.
        alpha[mt][half] = row_max[mt][half] == most ? 1.f : exp2_approx((row_max[mt][half] - most) * c);
        moved |= alpha[mt][half] != 1.f;
        row_max[mt][half] = most;
        if constexpr (!kTight) {
          exponentials(s, mt, half, shift[mt][half], alpha[mt][half]);
          rescale(mt, half, alpha[mt][half]);
        }
      }
    if constexpr (kTight) {
      if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
          for (int half = 0; half < 2; ++half) rescale(mt, half, alpha[mt][half]);
      }
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
        for (int half = 0; half < 2; ++half) exponentials(s, mt, half, shift[mt][half], alpha[mt][half]);
    }
  }

  /// Scores of a row become P, and join its sum.
  __device__ void exponentials(float (&s)[kMt][kN / 8][4], int mt, int half, float shift, float alpha) {
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[mt][n][i] = exp2_approx(s[mt][n][i] * args.scale_log2 - shift);
        sum += s[mt][n][i];
      }
    row_sum(mt, half) = row_sum(mt, half) * alpha + sum;
  }

  __device__ void rescale(int mt, int half, float alpha) {
#pragma unroll
    for (int n = 0; n < Shape::kDimVPad / 8; ++n) {
      out[mt][n][2 * half] *= alpha;
      out[mt][n][2 * half + 1] *= alpha;
    }
  }

  __device__ void multiply_pv(const float (&p)[kMt][kN / 8][4], u32 values) {
    const int lane = ForwardTile::lane();
    const u32 b_base = values + (lane % 16 * Shape::kPitchV + lane / 16 * 8) * 2;
    multiply_ahead<Config::kBf16, kN / 16, kAhead>(
        out,
        [&](int kk, u32(&a)[kMt][4]) {
#pragma unroll
          for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              a[mt][i] = pack_16<Config::kBf16>(p[mt][2 * kk + i / 2][i % 2 * 2],
                                                p[mt][2 * kk + i / 2][i % 2 * 2 + 1]);
        },
        [&](int kk, int n, u32(&b)[4]) {
          ldmatrix_x4_trans(b, b_base + (kk * 16 * Shape::kPitchV + n * 16) * 2);
        });
  }

  /// All of the tile's blocks, right to left. Needs Q's loads issued.
  __device__ void walk() {
    clear(out);
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[mt][half] = negative_infinity();
        row_sum(mt, half) = 0.f;
      }
    const int blocks = RowTile::blocks();
    if (blocks == 0) return;
    load_block(0, shared().tile.k_begin + (blocks - 1) * kN);
    if constexpr (kSplit) {
      int turn = 0;
#pragma unroll 1
      for (int block = shared().tile.k_begin + (blocks - 1) * kN; block >= shared().tile.k_begin;
           block -= kN, ++turn) {
        barrier_wait(landed(turn % 2), turn / 2 % 2);
        attend(turn % 2, block, [&] {
          if (block == shared().tile.k_begin) return;
          if (turn > 0) barrier_wait(done(), (turn + 1) % 2);  // of the block before: its buffer is free
          load_block((turn + 1) % 2, block - kN);
        });
        __syncwarp();
        // Nobody waits for the last two blocks.
        if (block - kN > shared().tile.k_begin && lane() == 0) barrier_arrive(done());
      }
    } else {
      int stage = 0;
#pragma unroll 1
      for (int block = shared().tile.k_begin + (blocks - 1) * kN; block >= shared().tile.k_begin;
           block -= kN, stage ^= 1) {
        cp_async_wait_all();
        __syncthreads();  // this block has arrived, and every warp is done with the buffers that are filled
                          // next
        if (block > shared().tile.k_begin) load_block(stage ^ 1, block - kN);
        attend(stage, block, [] {});
      }
    }
  }

  /// One block of keys; `between` runs between its scores and their softmax.
  template <class Between>
  __device__ void attend(int stage, int block, Between between) {
    const bool needed = is_needed(block);
    float s[kMt][kN / 8][4];
    if (needed) multiply_qk(s, smem_k(stage));
    between();
    if (!needed) return;
    if (is_masked(block)) mask(s, block);
    softmax(s);
    multiply_pv(s, smem_v(stage));
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
        const float sum = sum_over_quad(row_sum(mt, half));
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
  if (past_end(args.tile_count, blockIdx.x / args.head_groups)) return;
  ForwardTile work(args);
  // Documents that share a tile also share P * V: 0 * NaN would carry one document's NaN into another. A clean
  // result proves that nothing was carried (one pass); otherwise each document is done again with the others'
  // rows absent.
  ForwardShared& shared = work.shared();
  if (threadIdx.x == 0) {
    if constexpr (work.kSplit) work.init_barriers();
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
      if constexpr (work.kSplit) {
        work.invalidate_barriers();
        work.init_barriers();
      }
      shared.only = again ? shared.tile.seg_begin : shared.only + 1;
      shared.loaded = make_int2(args.segments[shared.only].k_begin, args.segments[shared.only].k_end);
    }
    __syncthreads();
  }
}
