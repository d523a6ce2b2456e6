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

#include "portable_backward_products.cuh"

namespace bdcp::kernel {

struct BackwardTile : BackwardProducts {
  using BackwardProducts::BackwardProducts;

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
