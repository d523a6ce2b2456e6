// What the reference kernels share: element conversions, operand tiles, the two tile products, dropout.
//
// A CTA of 8 warps owns 32 rows (or keys), a warp 4 of them; the other side is walked in tiles of 32, one per
// lane. Head dims are staged through shared memory in chunks of at most 128 columns. Foreign rows are never
// loaded, and products skip every pair that the mask forbids (0 * NaN is NaN).
#pragma once

#include "kernel_args.h"

namespace bdcp::kernel {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kOwn = kTile / kWarps;  // rows of a warp
constexpr int kChunk = 128;
constexpr int kLead = kChunk + 4;  // 16-byte reads of 8 neighbouring rows touch all banks once

__host__ __device__ constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
__host__ __device__ constexpr int chunk_of(int dim) { return dim >= kChunk ? kChunk : round_up(dim, 32); }
/// Columns of a DIM-wide row that one lane owns: lane, lane + 32, ...
__host__ __device__ constexpr int lane_columns(int dim) { return round_up(dim, 32) / 32; }

struct alignas(16) Float4 {
  float x, y, z, w;
};

struct alignas(16) Shared {
  float own[kTile][kLead];    // a chunk of the CTA's rows
  float other[kTile][kLead];  // a chunk of the tile being visited
  float weights[2][kTile][kTile];
};

/// Whether the work list ends before `item`; `count` as in ReferenceForwardArgs.
__device__ __forceinline__ bool past_end(const int* count, unsigned item) {
  return count != nullptr && (int)item >= *count;
}

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// ---- elements -------------------------------------------------------------------------------------------

enum : int { kF32 = 0, kF16 = 1, kBf16 = 2 };

template <int DTYPE>
struct ElementOf {
  typedef unsigned short type;
};
template <>
struct ElementOf<kF32> {
  typedef float type;
};

__device__ __forceinline__ float half_to_float(unsigned short bits) {
  unsigned magnitude = (bits & 0x7fffu) << 13;
  const float value = magnitude >= (0x7c00u << 13) ? __uint_as_float(magnitude | 0x7f800000u)
                                                   : __uint_as_float(magnitude) * 0x1p112f;
  return __uint_as_float(__float_as_uint(value) | ((bits & 0x8000u) << 16));
}

/// Nearest, ties to even.
__device__ __forceinline__ unsigned short half_from_float(float value) {
  const unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  unsigned half;
  if (magnitude >= 0x47800000u)
    half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  else if (magnitude < 0x38800000u)
    half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  else
    half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  return (unsigned short)(sign | half);
}

__device__ __forceinline__ unsigned short bf16_from_float(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((bits >> 16) | 0x40u);
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <int DTYPE>
__device__ __forceinline__ float to_float(typename ElementOf<DTYPE>::type value) {
  if constexpr (DTYPE == kF32)
    return value;
  else if constexpr (DTYPE == kF16)
    return half_to_float(value);
  else
    return __uint_as_float((unsigned)value << 16);
}

template <int DTYPE>
__device__ __forceinline__ void store_as(void* data, i64 offset, float value) {
  typename ElementOf<DTYPE>::type* to = (typename ElementOf<DTYPE>::type*)data + offset;
  if constexpr (DTYPE == kF32)
    *to = value;
  else if constexpr (DTYPE == kF16)
    *to = half_from_float(value);
  else
    *to = bf16_from_float(value);
}

typedef ElementOf<Config::dtype>::type Element;

// ---- where rows live ------------------------------------------------------------------------------------

/// `count` rows of one head from `first` on.
struct Rows {
  const Element* data;
  i64 stride;
  int count;
  __device__ Rows(const Tensor& tensor, i64 first, int rows, int head)
      : data((const Element*)tensor.data + first * tensor.row_stride + head * tensor.head_stride),
        stride(tensor.row_stride),
        count(rows) {}
  __device__ const Element* at(int i) const { return data + i * stride; }
};

/// The same for key positions: below remote_len in the remote tensor, otherwise in the local one.
struct Keys {
  const Element* local;
  const Element* remote;
  i64 local_stride, remote_stride, first, remote_len;
  int count;
  __device__ Keys(const Tensor& near, const Tensor& far, i64 split, i64 position, int keys, int head)
      : local((const Element*)near.data + head * near.head_stride),
        remote((const Element*)far.data + head * far.head_stride),
        local_stride(near.row_stride),
        remote_stride(far.row_stride),
        first(position),
        remote_len(split),
        count(keys) {}
  __device__ const Element* at(int i) const {
    const i64 position = first + i;
    return position < remote_len ? remote + position * remote_stride
                                 : local + (position - remote_len) * local_stride;
  }
};

// ---- tile products --------------------------------------------------------------------------------------

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_id() { return threadIdx.x >> 5; }

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

__device__ __forceinline__ float add_quarters(const float (&parts)[4]) {
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

/// Columns [c0, c0 + chunk) of up to 32 rows, zeros past the last row and column. The caller synchronises.
template <int DIM, class Source>
__device__ __forceinline__ void load_tile(float (&tile)[kTile][kLead], const Source& source, int c0) {
  const int lane = lane_id();
#pragma unroll 1  // more loads in flight would cost registers that wide heads need for their sums
  for (int step = 0; step < kTile / kWarps; ++step) {
    const int i = step * kWarps + warp_id();
    const bool valid = i < source.count;
    const Element* row = source.at(valid ? i : 0);
#pragma unroll
    for (int t = 0; t < chunk_of(DIM) / 32; ++t) {
      const int c = lane + 32 * t;
      tile[i][c] = valid && c0 + c < DIM ? to_float<Config::dtype>(row[c0 + c]) : 0.0f;
    }
  }
}

/// sums[r] = dot(own row kOwn * warp + r, other row lane), as add_quarters of the sums over every fourth column
/// in ascending order. delta of reference_backward_dq.cuh adds in the same order, so that dP - delta is exactly
/// 0 for rows with one key.
template <int DIM, class Own, class Other>
__device__ __forceinline__ void dot_tile(float (&sums)[kOwn], Shared& shared, const Own& own,
                                         const Other& other) {
  float parts[kOwn][4];
#pragma unroll
  for (int r = 0; r < kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) parts[r][u] = 0.0f;
#pragma unroll 1
  for (int c0 = 0; c0 < DIM; c0 += chunk_of(DIM)) {
    __syncthreads();  // everyone is done with the tiles before
    load_tile<DIM>(shared.own, own, c0);
    load_tile<DIM>(shared.other, other, c0);
    __syncthreads();
    const int width = DIM - c0 < chunk_of(DIM) ? round_up(DIM - c0, 4) : chunk_of(DIM);
    const float* y_row = shared.other[lane_id()];
    const float* x_rows = shared.own[warp_id() * kOwn];
#pragma unroll 2
    for (int c = 0; c < width; c += 4) {
      const Float4 y = *(const Float4*)(y_row + c);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const Float4 x = *(const Float4*)(x_rows + r * kLead + c);
        parts[r][0] = fmaf(x.x, y.x, parts[r][0]);
        parts[r][1] = fmaf(x.y, y.y, parts[r][1]);
        parts[r][2] = fmaf(x.z, y.z, parts[r][2]);
        parts[r][3] = fmaf(x.w, y.w, parts[r][3]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) sums[r] = add_quarters(parts[r]);
}

/// sums[r][t] += sum over i of weights[own row][i] * other row i, column lane + 32 t, for the pairs visible(r,
/// i).
template <int DIM, class Other, class Visible>
__device__ __forceinline__ void add_tile(float (&sums)[kOwn][lane_columns(DIM)], Shared& shared,
                                         const float (&weights)[kTile][kTile], const Other& other,
                                         const Visible& visible) {
  constexpr int kPer = chunk_of(DIM) / 32;
  const int lane = lane_id(), own = warp_id() * kOwn;
#pragma unroll
  for (int t0 = 0; t0 < lane_columns(DIM); t0 += kPer) {
    __syncthreads();  // weights are written; everyone is done with the tile before
    load_tile<DIM>(shared.other, other, t0 * 32);
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < other.count; ++i) {
      float y[kPer];
#pragma unroll
      for (int t = 0; t < kPer; ++t) y[t] = shared.other[i][lane + 32 * t];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        if (!visible(r, i)) continue;
        const float x = weights[own + r][i];
#pragma unroll
        for (int t = 0; t < kPer; ++t)
          if (t0 + t < lane_columns(DIM)) sums[r][t0 + t] = fmaf(x, y[t], sums[r][t0 + t]);
      }
    }
  }
}

template <int N>
__device__ __forceinline__ void clear(float (&sums)[kOwn][N]) {
#pragma unroll
  for (int r = 0; r < kOwn; ++r)
#pragma unroll
    for (int t = 0; t < N; ++t) sums[r][t] = 0.0f;
}

/// One row of DIM elements, value(t) being column lane + 32 t.
template <int DIM, int DTYPE, class Value>
__device__ __forceinline__ void store_row(const Tensor& tensor, i64 row, int head, const Value& value) {
  const i64 base = row * tensor.row_stride + head * tensor.head_stride;
#pragma unroll
  for (int t = 0; t < lane_columns(DIM); ++t) {
    const int c = lane_id() + 32 * t;
    if (c < DIM) store_as<DTYPE>(tensor.data, base + c, value(t));
  }
}

// ---- dropout --------------------------------------------------------------------------------------------

/// Philox4x32-10, first word.
__device__ __forceinline__ unsigned philox(unsigned k0, unsigned k1, unsigned c0, unsigned c1, unsigned c2,
                                           unsigned c3) {
#pragma unroll 1
  for (int round = 0; round < 10; ++round) {
    const unsigned a_high = __umulhi(0xD2511F53u, c0), a_low = 0xD2511F53u * c0;
    const unsigned b_high = __umulhi(0xCD9E8D57u, c2), b_low = 0xCD9E8D57u * c2;
    c0 = b_high ^ c1 ^ k0;
    c1 = b_low;
    c2 = a_high ^ c3 ^ k1;
    c3 = a_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

/// 1 without dropout, else 0 or 1 / (1 - p).
__device__ __forceinline__ float keep_factor(const DropoutArgs& args, i64 row, i64 position, int head) {
  if constexpr (Config::dropout) {
    const unsigned word = philox(args.seed_low, args.seed_high, args.offset, (unsigned)(args.q_offset + row),
                                 (unsigned)(args.k_offset + position), (unsigned)head);
    return word < args.threshold ? 0.0f : args.keep_scale;
  } else {
    return 1.0f;
  }
}

}  // namespace bdcp::kernel
