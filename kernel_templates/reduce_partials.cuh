// out = round(own + partial of the first later rank + partial of the next ...), in f32 and in this order, so
// that the bits depend on neither path nor run. Grid (row groups, 2): y = 0 sums dK, y = 1 dV.
#include "reduce_args.h"

namespace bdcp::kernel {

static_assert(Config::kDtype >= 0 && Config::kDtype <= 2, "f32, f16, bf16");
static_assert(Config::kPayload == 0 || Config::kPayload == Config::kDtype, "f32 or the input's type");

/// DType as in bdcp/types.h: 0 f32, 1 f16, 2 bf16.
template <int kType>
struct Element {
  typedef unsigned short Bits;
  typedef ushort4 Quad;
};
template <>
struct Element<0> {
  typedef float Bits;
  typedef float4 Quad;
};

template <int kType>
__device__ inline float load_one(typename Element<kType>::Bits bits) {
  if constexpr (kType == 0) {
    return bits;
  } else if constexpr (kType == 1) {
    float value;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(bits));
    return value;
  } else {
    return __uint_as_float(static_cast<unsigned int>(bits) << 16);
  }
}

template <int kType>
__device__ inline typename Element<kType>::Bits round_one(float value) {
  if constexpr (kType == 0) {
    return value;
  } else if constexpr (kType == 1) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(bits) : "f"(value));
    return bits;
  } else {
    // By hand: the instruction needs sm_80.
    const unsigned int bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

struct ReduceRow {
  const ReduceTensor& tensor;
  i64 row;
  int contributions;

  __device__ i64 out_offset(int element) const {
    const int head = element / tensor.dim;
    return row * tensor.out.row_stride + head * tensor.out.head_stride + (element - head * tensor.dim);
  }
  __device__ void one(i64 first, int element) const {
    typedef typename Element<Config::kPayload>::Bits Wire;
    typedef typename Element<Config::kDtype>::Bits Out;
    float sum = tensor.own[first + element];
    const Wire* partial = static_cast<const Wire*>(tensor.partials) + first + element;
    for (int c = 0; c < contributions; ++c, partial += tensor.partial_stride)
      sum += load_one<Config::kPayload>(*partial);
    static_cast<Out*>(tensor.out.data)[out_offset(element)] = round_one<Config::kDtype>(sum);
  }
  __device__ void four(i64 first, int element) const {
    typedef typename Element<Config::kPayload>::Quad Wire;
    typedef typename Element<Config::kDtype>::Bits Out;
    typedef typename Element<Config::kDtype>::Quad OutQuad;
    float4 sum = *reinterpret_cast<const float4*>(tensor.own + first + element);
    const Wire* partial = static_cast<const Wire*>(tensor.partials) + (first + element) / 4;
#pragma unroll 4
    for (int c = 0; c < contributions; ++c, partial += tensor.partial_stride / 4) {
      const Wire w = *partial;
      sum.x += load_one<Config::kPayload>(w.x);
      sum.y += load_one<Config::kPayload>(w.y);
      sum.z += load_one<Config::kPayload>(w.z);
      sum.w += load_one<Config::kPayload>(w.w);
    }
    OutQuad out;
    out.x = round_one<Config::kDtype>(sum.x);
    out.y = round_one<Config::kDtype>(sum.y);
    out.z = round_one<Config::kDtype>(sum.z);
    out.w = round_one<Config::kDtype>(sum.w);
    *reinterpret_cast<OutQuad*>(static_cast<Out*>(tensor.out.data) + out_offset(element)) = out;
  }
};

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::kReduceThreads)
    reduce_partials(const __grid_constant__ bdcp::kernel::ReduceArgs args) {
  using namespace bdcp::kernel;
  const ReduceTensor& tensor = blockIdx.y == 0 ? args.k : args.v;
  const int width = tensor.heads * tensor.dim;
  const int threads = static_cast<int>(blockDim.x);
  const i64 step = static_cast<i64>(gridDim.x) * blockDim.y;
  for (i64 row = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y; row < args.rows; row += step) {
    const ReduceRow job{tensor, row, args.contributions};
    if (tensor.quads) {
      for (int i = 4 * static_cast<int>(threadIdx.x); i < width; i += 4 * threads) job.four(row * width, i);
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < width; i += threads) job.one(row * width, i);
    }
  }
}
