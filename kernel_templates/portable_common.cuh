// Building blocks of the portable kernels: cp.async, ldmatrix and mma.sync, for sm_80 and newer. Includes
// nothing.
#pragma once

namespace bdcp::kernel {

typedef unsigned int u32;
typedef unsigned short u16;

__device__ inline u32 smem_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// Waits for the kernel before this one on the stream where the launch did not (`early` of Device::launch).
/// First of all, in every thread: a CTA that ends without could let the kernel after this one start too soon.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
/// Lets the kernel after this one be launched, to wait; once every CTA has called it.
__device__ inline void launch_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/// Whether the work list ends before `item`; `count` as in ReferenceForwardArgs.
__device__ inline bool past_end(const int* count, unsigned item) {
  return count != nullptr && static_cast<int>(item) >= *count;
}

constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float negative_infinity() { return __int_as_float(0xff800000); }

/// 16 bytes from global to shared memory; zeros when `valid` is false (the source is then not read).
__device__ inline void cp_async_16(u32 dst, const void* src, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0)
               : "memory");
}
/// 4 bytes, likewise.
__device__ inline void cp_async_4(u32 dst, const void* src, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(dst), "l"(src), "r"(valid ? 4 : 0)
               : "memory");
}
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

/// Split barriers in shared memory (mbarrier): arriving and waiting are apart, so that warps need not stand
/// still together. A wait for `parity` ends once the phase of that parity is complete.
__device__ inline void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Before a barrier's memory is initialised again.
__device__ inline void barrier_invalidate(u32 barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive(u32 barrier) {
  asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared.b64 state, [%0];}\n" ::"r"(barrier) : "memory");
}
/// Arrives once the thread's cp.async so far have landed.
__device__ inline void barrier_arrive_after_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
#if __CUDA_ARCH__ >= 900
      " mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
      " mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
      " @!done bra again;}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// A barrier among `threads` threads (whole warps); ids 1 to 15 are free.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// d += a * b, 16x8x16, fp32 accumulators, operands fp16 or bf16.
template <bool kBf16>
__device__ inline void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Two floats rounded to the 16-bit type; `low` lands in the lower half.
template <bool kBf16>
__device__ inline u32 pack_16(float low, float high) {
  u32 packed;
  if constexpr (kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <bool kBf16>
__device__ inline void unpack_16(u32 packed, float& low, float& high) {
  if constexpr (kBf16) {
    low = __uint_as_float(packed << 16);
    high = __uint_as_float(packed & 0xffff0000u);
  } else {
    asm("{.reg .f16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;}\n"
        : "=f"(low), "=f"(high)
        : "r"(packed));
  }
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float max_over_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float sum_over_quad(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// Four words per lane, transposed within each quad of lanes: word i of lane j becomes word j of lane i.
__device__ inline void transpose_quad(u32 (&word)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(0xffffffffu, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? got : word[i];
    word[i + 1] = odd ? word[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(0xffffffffu, high ? word[i] : word[i + 2], 2);
    word[i] = high ? got : word[i];
    word[i + 2] = high ? word[i + 2] : got;
  }
}

}  // namespace bdcp::kernel
