// Row kernels around hopper_backward: LSE and rowsum(dO * O) as it reads them before it, of rows whose
// sums it does not form itself, dQ from its fp32 sums after it. Config: kBf16, kDim, kDimV, kM. CTAs of 256
// threads: chunks of rows in x, shares of the q heads in y.
#pragma once

#include "hopper_backward_store.cuh"

namespace bdcp::kernel {

/// Eight neighbouring elements times eight others.
__device__ inline float dot_eight(const u16* a, const u16* b) {
  const uint4 x = *reinterpret_cast<const uint4*>(a), y = *reinterpret_cast<const uint4*>(b);
  const u32 left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float l0, l1, r0, r1;
    unpack_16<Config::kBf16>(left[i], l0, l1);
    unpack_16<Config::kBf16>(right[i], r0, r1);
    sum += l0 * r0 + l1 * r1;
  }
  return sum;
}

/// Lanes that share a row, eight elements each: a power of two.
constexpr int lanes_of(int dim) {
  int lanes = 1;
  while (lanes * 8 < dim) lanes *= 2;
  return lanes;
}

}  // namespace bdcp::kernel

/// LSE * log2(e) and delta of all rows of a chunk that have keys; zeroes what says who has added to
/// the sums of rows that several key tiles add to (of wide heads the sums), and dQ of rows that see none.
/// Resets what hopper_backward draws its items from and counts parts with.
extern "C" __global__ void __launch_bounds__(256)
    hopper_backward_delta(const __grid_constant__ bdcp::kernel::HopperRowsArgs args) {
  using namespace bdcp::kernel;
  launch_next_kernel();
  constexpr int kLanes = lanes_of(Config::kDimV), kRows = 256 / kLanes;  // rows at a time
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *args.ticket = 0;
  for (i64 i = (static_cast<i64>(blockIdx.y) * gridDim.x + blockIdx.x) * 256 + threadIdx.x;
       i < args.part_groups; i += static_cast<i64>(gridDim.x) * gridDim.y * 256)
    args.part_counts[i] = 0;
  if (static_cast<int>(blockIdx.x) >= args.chunk_count || past_end(args.count, blockIdx.x)) return;
  const HopperRows chunk = args.chunks[blockIdx.x];
  const int lane = threadIdx.x % kLanes;
  for (int head = blockIdx.y; head < args.heads_q; head += gridDim.y) {
    if (chunk.kind == kRowsZero) {
      constexpr int kPieces = Config::kDim / 8;
      for (int i = threadIdx.x; i < (chunk.end - chunk.begin) * kPieces; i += 256) {
        const int row = chunk.begin + i / kPieces;
        u16* target = static_cast<u16*>(args.dq.data) + row * args.dq.row_stride + head * args.dq.head_stride;
        *reinterpret_cast<uint4*>(target + i % kPieces * 8) = make_uint4(0, 0, 0, 0);
      }
      continue;
    }
#pragma unroll 4
    for (int base = chunk.begin; base < chunk.end; base += kRows) {  // uniform: the shuffles need whole warps
      const int row = base + static_cast<int>(threadIdx.x) / kLanes;
      const bool real = row < chunk.end;
      float sum = 0.f;
      if (real && lane * 8 < Config::kDimV)
        sum = dot_eight(static_cast<const u16*>(args.out.data) + row * args.out.row_stride +
                            head * args.out.head_stride + lane * 8,
                        static_cast<const u16*>(args.dout.data) + row * args.dout.row_stride +
                            head * args.dout.head_stride + lane * 8);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      if (real && lane == 0) {
        args.delta[head * args.rows + row] = sum;
        args.lse_log2[head * args.rows + row] = args.lse[head * args.lse_stride + row] * kLog2E;
      }
    }
    if (chunk.kind == kRowsSummed) {
      const i64 place = static_cast<i64>(chunk.sum_block) * args.heads_q + head;
      if (threadIdx.x < 2) args.added[place * 2 + threadIdx.x] = 0;
      if constexpr (HopperDqShape::kWide) {
        constexpr int kFloats = HopperDqShape::kParts * HopperDqShape::kFloats;
        float4* sums = reinterpret_cast<float4*>(args.dq_sum + place * kFloats);
#pragma unroll 1
        for (int i = threadIdx.x; i < kFloats / 4; i += 256) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
      }
    }
  }
}

/// dQ = scale * sum, for the rows that several key tiles added to.
extern "C" __global__ void __launch_bounds__(256)
    hopper_backward_round(const __grid_constant__ bdcp::kernel::HopperRowsArgs args) {
  using namespace bdcp::kernel;
  wait_for_previous_kernel();
  if (past_end(args.count, blockIdx.x)) return;
  const HopperRows chunk = args.chunks[blockIdx.x];
  if (chunk.kind != kRowsSummed) return;
  constexpr int kParts = HopperDqShape::kParts;
  for (int i = blockIdx.y * 2 + threadIdx.x / 128; i < args.heads_q * kParts; i += gridDim.y * 2) {
    const int head = i / kParts, part = i % kParts;
    const i64 place = static_cast<i64>(chunk.sum_block) * args.heads_q * kParts + i;
    const float4* sums =
        reinterpret_cast<const float4*>(args.dq_sum + place * HopperDqShape::kFloats) + threadIdx.x % 128;
    float dq[HopperDqShape::kColumns / 2];
#pragma unroll
    for (int i = 0; i < HopperDqShape::kColumns / 8; ++i) {
      const float4 four = sums[i * 128];
      dq[4 * i] = four.x;
      dq[4 * i + 1] = four.y;
      dq[4 * i + 2] = four.z;
      dq[4 * i + 3] = four.w;
    }
    store_dq(args.dq, dq, args.scale, part, head, chunk.begin, chunk.end);
  }
}
