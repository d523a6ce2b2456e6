// Backward on tensor cores through mma.sync: sm_80 and newer. A CTA keeps one tile of K/V rows and their dK and
// dV, and walks the query rows that see them, one q head of the K/V head after the other, in a fixed order: dK
// and dV are the same bits on every run. dQ leaves per block: straight to its rows where this tile holds all of
// their keys, else by fp32 adds, or is left to portable_backward_dq where there is nothing to add to.
//
// Scores are computed transposed (keys x rows): a warp takes a strip of keys and half of the block's rows. P
// and dS pass through shared memory, where dV and dK find them as [key][row] and dQ finds dS transposed; there
// a warp takes its strip of keys and half of the columns. Two warps of a strip wait for each other; all warps
// meet only at split barriers with other work between arriving and waiting, so that one warp's softmax runs
// under another's products. Config: kBf16, kDim, kDimV, kRatio, kM query rows per block, kN keys, kWarps,
// kCtas, kAligned, kPayloadF32 (dtype of remote dK/dV), kStagesDo (buffers for dO: 2 or, where shared memory is
// short, 1; Q has two), kSmem.
#pragma once

#include "portable_args.h"
#include "portable_common.cuh"
#include "portable_mma.cuh"
#include "portable_rows.cuh"

namespace bdcp::kernel {

struct BackwardShape {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kKeyGroups = Config::kWarps / 2;
  static constexpr int kKt = Config::kN / (16 * kKeyGroups);  // m16 tiles of keys per warp
  static constexpr int kHalfM = Config::kM / 2;
  // dQ of a block: warps as a grid of row strips times column groups.
  static constexpr int kStrips = 2;
  static constexpr int kRt = kHalfM / 16;  // m16 tiles of rows per warp
  static constexpr int kColumnGroups = kKeyGroups;
  static constexpr int kColumnUnit = 16 * kColumnGroups;
  static constexpr int kDimPad = (Config::kDim + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
  static constexpr int kDimVPad = (Config::kDimV + 31) / 32 * 32;
  static constexpr int kDqColumns = kDimPad / kColumnGroups;
  static constexpr int kPitchK = kDimPad + 8;
  static constexpr int kPitchV = kDimVPad + 8;
  static constexpr int kPitchS = Config::kM + 8;  // of P and dS, stored [key][row]
  static constexpr int kBytesK = Config::kN * kPitchK * 2;
  static constexpr int kBytesV = Config::kN * kPitchV * 2;
  static constexpr int kBytesQ = Config::kM * kPitchK * 2;
  static constexpr int kBytesDo = Config::kM * kPitchV * 2;
  static constexpr int kBytesS = Config::kN * kPitchS * 2;
  static_assert(Config::kN == 16 * kKt * kKeyGroups && Config::kM % 32 == 0,
                "tile does not split over the warps");
};

/// The rows [first, end) that see a key. `steep`: the first of those that sees another key too; a row with a
/// single key has a constant softmax, and its dS is zero rather than a rounding error.
struct alignas(16) KeyRows {
  int first, end, steep, unused;
};

/// What a CTA keeps in shared memory rather than in registers; K, V, the Q and dO buffers and dS follow.
struct alignas(16) BackwardShared {
  KeyRows keys[Config::kN];
  float lse[2][Config::kM];
  float delta[2][Config::kM];
  unsigned long long landed[2];  // mbarriers: a buffer's rows have arrived
  unsigned long long landed_do;  // a single dO buffer has been filled
  unsigned long long read_do;    // all warps are done with it
  unsigned long long scored;     // all warps have stored P and dS of a block
  unsigned long long done;       // all warps are done with a block
  PortableKeyTile tile;
  int2 rows;    // query rows that are read; others arrive as zeros
  int2 loaded;  // likewise key positions
  int kv_head;
};

static_assert(sizeof(BackwardShared) + BackwardShape::kBytesK + BackwardShape::kBytesV +
                      2 * (BackwardShape::kBytesQ + BackwardShape::kBytesS) +
                      Config::kStagesDo * BackwardShape::kBytesDo ==
                  Config::kSmem,
              "the host sizes shared memory the same way");

struct BackwardTile {
  using Shape = BackwardShape;
  static constexpr int kM = Config::kM, kN = Config::kN;
  static constexpr int kSumPitch = (Config::kDim + kDqSumUnit - 1) / kDqSumUnit * kDqSumUnit;
  static constexpr int kAheadScores = 2, kAheadGradients = 4;  // B fragments in flight

  const PortableBackwardArgs& args;
  BackwardShared& shared;
  u32 smem_k, smem_v, smem_blocks, smem_p, smem_ds;
  int thread, lane, warp;
  int turn;  // blocks so far, over all passes: the phases of the barriers
  static constexpr int kKt = Shape::kKt, kRt = Shape::kRt, kHalfM = Shape::kHalfM;
  float dk[kKt][Shape::kDimPad / 16][4],
      dv[kKt][Shape::kDimVPad / 16][4];  // the warp's keys, half of the columns
  bool bad;                              // a dQ value of this tile was not finite

  __device__ BackwardTile(const PortableBackwardArgs& a, char* smem)
      : args(a), shared(*reinterpret_cast<BackwardShared*>(smem)) {
    thread = threadIdx.x;
    lane = thread % 32;
    warp = thread / 32;
    smem_k = smem_address(smem) + sizeof(BackwardShared);
    smem_v = smem_k + Shape::kBytesK;
    smem_blocks = smem_v + Shape::kBytesV;
    smem_p = smem_blocks + 2 * Shape::kBytesQ + Config::kStagesDo * Shape::kBytesDo;
    smem_ds = smem_p + Shape::kBytesS;
    turn = 0;
    if (thread == 0) {
      shared.tile = args.tiles[blockIdx.x / args.heads_kv];
      shared.kv_head = static_cast<int>(blockIdx.x) % args.heads_kv;
      for (int stage = 0; stage < 2; ++stage) barrier_init(landed(stage), Shape::kThreads);
      barrier_init(landed_do(), Shape::kThreads);
      barrier_init(read_do(), Config::kWarps);
      barrier_init(scored(), Config::kWarps);
      barrier_init(done(), Config::kWarps);
    }
    __syncthreads();
  }

  __device__ u32 landed(int stage) const { return smem_address(&shared.landed[stage]); }
  __device__ u32 landed_do() const { return smem_address(&shared.landed_do); }
  __device__ u32 read_do() const { return smem_address(&shared.read_do); }
  __device__ u32 scored() const { return smem_address(&shared.scored); }
  __device__ u32 done() const { return smem_address(&shared.done); }

  __device__ u32 smem_q(int stage) const {
    return smem_blocks + stage * (Shape::kBytesQ + (Config::kStagesDo == 2 ? Shape::kBytesDo : 0));
  }
  __device__ u32 smem_do(int stage) const {
    return Config::kStagesDo == 2 ? smem_q(stage) + Shape::kBytesQ : smem_q(2);
  }

  template <int kDim, int kPad, int kPitch>
  __device__ void load_keys(u32 smem, const Tensor& local, const Tensor& remote) const {
    using Copy = RowCopy<Shape::kThreads, kDim, kPad, kPitch>;
    const int chunk = Copy::chunk(thread);
    const u16* near = static_cast<const u16*>(local.data) + shared.kv_head * local.head_stride + chunk * 8;
    const u16* far = static_cast<const u16*>(remote.data) + shared.kv_head * remote.head_stride + chunk * 8;
#pragma unroll 2
    for (int row = Copy::row(thread); row < kN; row += Copy::kStep) {
      const int position = shared.tile.k_begin + row;
      const u16* source = position < args.remote_len ? far + position * remote.row_stride
                                                     : near + (position - args.remote_len) * local.row_stride;
      Copy::copy(smem, row, chunk, source, position >= shared.loaded.x && position < shared.loaded.y);
    }
  }

  template <int kDim, int kPad, int kPitch>
  __device__ void load_block(u32 smem, const Tensor& tensor, int head, int block) const {
    using Copy = RowCopy<Shape::kThreads, kDim, kPad, kPitch>;
    constexpr int kPasses = (kM + Copy::kStep - 1) / Copy::kStep;
    constexpr bool kEven = kM % Copy::kStep == 0;  // else some threads have a row less
    const int t = formed_again(thread), chunk = Copy::chunk(t), first = block + Copy::row(t);
    const u16* source = static_cast<const u16*>(tensor.data) + head * tensor.head_stride + chunk * 8 +
                        first * tensor.row_stride;
    const int begin = shared.rows.x, end = shared.rows.y;
    constexpr int kUnroll = Config::kAligned ? kPasses : 1;  // rows that go through registers take them
#pragma unroll kUnroll
    for (int i = 0; i < kPasses; ++i, source += Copy::kStep * tensor.row_stride)
      if (kEven || Copy::row(t) + i * Copy::kStep < kM)
        Copy::copy(smem, Copy::row(t) + i * Copy::kStep, chunk, source,
                   first + i * Copy::kStep >= begin && first + i * Copy::kStep < end);
  }

  __device__ void load_dout(int stage, int head, int block) const {
    load_block<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_do(stage), args.dout, head, block);
  }

  __device__ void load_single_dout(int head, int block) const {
    load_dout(0, head, block);
    arrive_loaded(landed_do());
  }

  /// Q, dO, LSE and delta of rows [block, block + kM) of a head; a single dO buffer is filled elsewhere.
  __device__ void load_rows(int stage, int head, int block) {
    load_block<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_q(stage), args.q, head, block);
    if constexpr (Config::kStagesDo == 2) load_dout(stage, head, block);
#pragma unroll
    for (int first = 0; first < 2 * kM; first += Shape::kThreads) {
      const int index = first + thread, i = index % kM, row = block + i;
      if (2 * kM % Shape::kThreads != 0 && index >= 2 * kM) break;
      const bool real = row >= shared.rows.x && row < shared.rows.y;
      if (index < kM)
        cp_async_4(smem_address(&shared.lse[stage][i]), args.lse + head * args.lse_stride + row, real);
      else
        cp_async_4(smem_address(&shared.delta[stage][i]), args.delta + head * args.rows + row, real);
    }
    arrive_loaded(landed(stage));
  }

  /// Arrives once what the thread has loaded so far is there.
  __device__ void arrive_loaded(u32 barrier) const {
    if constexpr (Config::kAligned) {
      barrier_arrive_after_copies(barrier);
    } else {  // rows went through registers
      cp_async_wait_all();
      barrier_arrive(barrier);
    }
  }

  /// The warp's arrival.
  __device__ void arrive(u32 barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  /// Rows that see each key, from segments [seg_begin, seg_end).
  __device__ void find_rows(int seg_begin, int seg_end) const {
    for (int index = thread; index < kN; index += Shape::kThreads) {
      const int position = shared.tile.k_begin + index;
      KeyRows rows{0, 0, 0, 0};
#pragma unroll 1
      for (int s = seg_begin; s < seg_end; ++s) {
        const Segment segment = args.segments[s];
        if (position < segment.k_begin || position >= segment.k_end || position >= shared.tile.k_end) continue;
        // Bottom-right aligned: the segment's last row sees all of its keys, the row before all but the last,
        // ...
        const int first = segment.q_end - (segment.k_end - position);
        rows.first = max(segment.q_begin, first);
        rows.end = segment.q_end;
        rows.steep = first >= segment.q_begin && position == segment.k_begin ? first + 1 : rows.first;
      }
      shared.keys[index] = rows;
    }
  }

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
      lse.x *= 1.4426950408889634f;
      lse.y *= 1.4426950408889634f;
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

  /// All q heads and row blocks of the tile, in order, for its segments [seg_begin, seg_end).
  __device__ void walk(int seg_begin, int seg_end) {
    clear(dk);
    clear(dv);
    bad = false;
    const int rows = shared.tile.q_end - shared.tile.q_begin, blocks = rows <= 0 ? 0 : (rows - 1) / kM + 1;
    if (blocks == 0) return;
    load_keys<Config::kDim, Shape::kDimPad, Shape::kPitchK>(smem_k, args.k, args.remote_k);
    load_keys<Config::kDimV, Shape::kDimVPad, Shape::kPitchV>(smem_v, args.v, args.remote_v);
    int head = shared.kv_head * Config::kRatio, block = shared.tile.q_begin;
    load_rows(turn % 2, head, block);
    if constexpr (Config::kStagesDo == 1) load_single_dout(head, block);
    find_rows(seg_begin, seg_end);
    __syncthreads();
#pragma unroll 1
    for (int left = blocks * Config::kRatio; left > 0; --left, ++turn) {
      const int stage = turn % 2;
      const bool wraps = shared.tile.q_end - block <= kM;  // differences: a sum of positions may pass 2^31
      const int next_head = head + wraps, next_block = wraps ? shared.tile.q_begin : block + kM;
      barrier_wait(landed(stage), turn / 2 % 2);
      block_scores(stage, block, block < shared.tile.full_begin || shared.tile.full_end - block < kM, [&] {
        if (left < blocks * Config::kRatio) barrier_wait(done(), (turn + 1) % 2);  // of the block before
        if (left > 1) load_rows(stage ^ 1, next_head, next_block);
      });
      arrive(scored());
      named_barrier(1 + warp / 2, 64);  // the strip's P and dS: all that dV and dK of its keys need
      accumulate<Shape::kDimVPad, Shape::kPitchV>(dv, smem_p, smem_do(stage));
      if constexpr (Config::kStagesDo == 1) arrive(read_do());
      accumulate<Shape::kDimPad, Shape::kPitchK>(dk, smem_ds, smem_q(stage));
      if constexpr (Config::kStagesDo == 1) {
        barrier_wait(read_do(), turn % 2);
        if (left > 1) load_single_dout(next_head, next_block);
      }
      // Asked in this order and afresh, or 256-wide heads spill.
      if (args.dq_sum != nullptr || formed_again(shared.tile.whole)) {
        float dq[kRt][Shape::kDqColumns / 8][4];
        barrier_wait(scored(), turn % 2);
        multiply_dq(dq);
        arrive(done());
        store_dq(dq, head, block);
      } else {
        arrive(done());
      }
      head = next_head;
      block = next_block;
    }
    // The last phase of `done` is not waited for; the barrier after the walk stands in.
  }

  __device__ bool any_non_finite() const {
    bool found = bad;
#pragma unroll
    for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int n = 0; n < Shape::kDimPad / 16; ++n) found |= !(fabsf(dk[kt][n][i]) <= 3.4028234e38f);
#pragma unroll
        for (int n = 0; n < Shape::kDimVPad / 16; ++n) found |= !(fabsf(dv[kt][n][i]) <= 3.4028234e38f);
      }
    return found;
  }

  template <int kDim, int kPad>
  __device__ void store_one(const PortableKeyGradient& target, const float (&acc)[kKt][kPad / 16][4],
                            float factor, int first, int end) const {
    const int l = formed_again(lane), w = formed_again(warp);
    const int column = w % 2 * (kPad / 2);
#pragma unroll
    for (int kt = 0; kt < kKt; ++kt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int position = shared.tile.k_begin + (w / 2 * kKt + kt) * 16 + l / 4 + half * 8;
        const bool real = position >= first && position < end;
        const int row = position - args.remote_len;
        const bool far = row < 0;
        const bool wide = far ? Config::kPayloadF32 : row >= args.shared_begin;
        const Tensor& tensor = far ? target.remote : wide ? target.shared : target.local;
        const i64 offset = (far    ? position
                            : wide ? row - args.shared_begin
                                   : row) *
                               tensor.row_stride +
                           shared.kv_head * tensor.head_stride + column;
        const auto value = [&](int n, int i) { return acc[kt][n][2 * half + i] * factor; };
        if (real && wide) {
          float* to = static_cast<float*>(tensor.data) + offset + l % 4 * 2;
#pragma unroll
          for (int n = 0; n < kPad / 16; ++n) {
            if (kDim != kPad && n * 8 + column >= kDim) continue;
            to[n * 8] = value(n, 0);
            to[n * 8 + 1] = value(n, 1);
          }
        }
        store_row<Config::kBf16, Config::kAligned, kPad / 16>(static_cast<u16*>(tensor.data) + offset,
                                                              kDim - column, real && !wide, value);
      }
  }
  __device__ void store(int first, int end) const {
    store_one<Config::kDim, Shape::kDimPad>(args.dk, dk, args.scale, first, end);
    store_one<Config::kDimV, Shape::kDimVPad>(args.dv, dv, 1.f, first, end);
  }
};

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::BackwardShape::kThreads, bdcp::kernel::Config::kCtas)
    portable_backward(const __grid_constant__ bdcp::kernel::PortableBackwardArgs args) {
  using namespace bdcp::kernel;
  wait_for_previous_kernel();
  extern __shared__ __align__(128) char smem[];
  if (past_end(args.tile_count, blockIdx.x / args.heads_kv)) return;
  BackwardTile work(args, smem);
  BackwardShared& shared = work.shared;
  // As in forward: documents that share a tile are done again one by one if anything came out non-finite, with
  // the others' rows absent. Such a tile holds whole documents, so that all of its results are overwritten.
  for (int only = -1;;) {
    const bool all = only < 0;
    if (threadIdx.x == 0) {
      shared.loaded = all ? make_int2(shared.tile.k_begin, shared.tile.k_end)
                          : make_int2(args.segments[only].k_begin, args.segments[only].k_end);
      shared.rows = all ? make_int2(shared.tile.q_begin, shared.tile.q_end)
                        : make_int2(args.segments[only].q_begin, args.segments[only].q_end);
    }
    __syncthreads();
    work.walk(all ? shared.tile.seg_begin : only, all ? shared.tile.seg_end : only + 1);
    const bool several = shared.tile.seg_end - shared.tile.seg_begin > 1;
    if (!__syncthreads_or(several && only < 0 && work.any_non_finite())) {
      work.store(shared.loaded.x, shared.loaded.y);
      if (only < 0 || ++only == shared.tile.seg_end) return;
    } else {
      only = shared.tile.seg_begin;
    }
    __syncthreads();
  }
}
