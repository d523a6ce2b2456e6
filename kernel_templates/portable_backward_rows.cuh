// Row kernels around portable_backward: rowsum(dO * O) before it, dQ from its fp32 sums after it.
// Config: kBf16, kDim, kDimV, kAligned. One CTA of 256 threads per chunk of rows; all q heads.
#pragma once

#include "portable_args.h"
#include "portable_rows.cuh"

namespace bdcp::kernel {

/// Eight neighbouring elements as floats.
__device__ inline void load_eight(const u16* source, float (&value)[8]) {
  u32 word[4];
  if constexpr (Config::kAligned) {
    const uint4 packed = *reinterpret_cast<const uint4*>(source);
    word[0] = packed.x, word[1] = packed.y, word[2] = packed.z, word[3] = packed.w;
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) word[w] = source[2 * w] | static_cast<u32>(source[2 * w + 1]) << 16;
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) unpack_16<Config::kBf16>(word[w], value[2 * w], value[2 * w + 1]);
}

__device__ inline void store_eight(u16* target, const float (&value)[8]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const u32 pair = pack_16<Config::kBf16>(value[2 * w], value[2 * w + 1]);
    if constexpr (Config::kAligned) {
      reinterpret_cast<u32*>(target)[w] = pair;
    } else {
      target[2 * w] = static_cast<u16>(pair);
      target[2 * w + 1] = static_cast<u16>(pair >> 16);
    }
  }
}

/// Lanes that share one row of `kWidth` elements, eight each: a power of two.
template <int kWidth>
struct RowLanes {
  static constexpr int kChunks = kWidth / 8;
  static constexpr int kLanes = kChunks <= 1    ? 1
                                : kChunks <= 2  ? 2
                                : kChunks <= 4  ? 4
                                : kChunks <= 8  ? 8
                                : kChunks <= 16 ? 16
                                                : 32;
  static_assert(kWidth % 8 == 0 && kChunks <= 32, "head dims are multiples of 8 up to 256");
};

}  // namespace bdcp::kernel

/// delta for all rows of a chunk; zeroes the dQ sums of rows that several key tiles add to, and dQ of rows that
/// see none.
extern "C" __global__ void __launch_bounds__(256)
    portable_backward_delta(const __grid_constant__ bdcp::kernel::PortableBackwardArgs args) {
  using namespace bdcp::kernel;
  launch_next_kernel();
  using Lanes = RowLanes<Config::kDimV>;
  if (past_end(args.chunk_count, blockIdx.x)) return;
  const PortableRows chunk = args.row_chunks[blockIdx.x];
  const int count = (chunk.end - chunk.begin) * args.heads_q;
  const int lane = threadIdx.x % Lanes::kLanes, per_pass = 256 / Lanes::kLanes;
  if (chunk.kind != kRowsZero) {
    for (int base = 0; base < count; base += per_pass) {  // uniform trip count: the shuffles need whole warps
      const int item = base + threadIdx.x / Lanes::kLanes;
      const bool real = item < count;
      const int row = chunk.begin + item / args.heads_q, head = item % args.heads_q;
      float sum = 0.f;
      if (real && lane < Lanes::kChunks) {
        float o[8], d[8];
        load_eight(static_cast<const u16*>(args.out.data) + row * args.out.row_stride +
                       head * args.out.head_stride + lane * 8,
                   o);
        load_eight(static_cast<const u16*>(args.dout.data) + row * args.dout.row_stride +
                       head * args.dout.head_stride + lane * 8,
                   d);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += o[i] * d[i];
      }
#pragma unroll
      for (int offset = Lanes::kLanes / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (real && lane == 0) args.delta[head * args.rows + row] = sum;
    }
  }
  if (chunk.kind == kRowsSummed) {
    constexpr int kPitch = (Config::kDim + kDqSumUnit - 1) / kDqSumUnit * kDqSumUnit;
    float4* sums =
        reinterpret_cast<float4*>(args.dq_sum + static_cast<i64>(chunk.begin) * args.heads_q * kPitch);
    for (int i = threadIdx.x; i < count * (kPitch / 4); i += 256) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  if (chunk.kind == kRowsZero) {
    const float zero[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    for (int i = threadIdx.x; i < count * (Config::kDim / 8); i += 256) {
      const int item = i / (Config::kDim / 8), row = chunk.begin + item / args.heads_q,
                head = item % args.heads_q;
      store_eight(static_cast<u16*>(args.dq.data) + row * args.dq.row_stride + head * args.dq.head_stride +
                      i % (Config::kDim / 8) * 8,
                  zero);
    }
  }
}

/// dQ = scale * sum, for the rows that several key tiles added to.
extern "C" __global__ void __launch_bounds__(256)
    portable_backward_round(const __grid_constant__ bdcp::kernel::PortableBackwardArgs args) {
  using namespace bdcp::kernel;
  wait_for_previous_kernel();
  if (past_end(args.chunk_count, blockIdx.x)) return;
  const PortableRows chunk = args.row_chunks[blockIdx.x];
  if (chunk.kind != kRowsSummed) return;
  constexpr int kGroups = (Config::kDim + kDqSumUnit - 1) / kDqSumUnit;
  const int count = (chunk.end - chunk.begin) * args.heads_q * kGroups;
  for (int i = threadIdx.x; i < count; i += 256) {
    const int item = i / kGroups, group = i % kGroups, row = chunk.begin + item / args.heads_q,
              head = item % args.heads_q;
    const float4* sums = reinterpret_cast<const float4*>(
        args.dq_sum + ((static_cast<i64>(chunk.begin) * args.heads_q + item) * kGroups + group) * 16);
    float low[8], high[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 four = sums[j];
      low[2 * j] = four.x * args.scale;
      low[2 * j + 1] = four.y * args.scale;
      high[2 * j] = four.z * args.scale;
      high[2 * j + 1] = four.w * args.scale;
    }
    u16* target =
        static_cast<u16*>(args.dq.data) + row * args.dq.row_stride + head * args.dq.head_stride + group * 16;
    store_eight(target, low);
    if (Config::kDim % 16 == 0 || group < kGroups - 1) store_eight(target + 8, high);
  }
}
