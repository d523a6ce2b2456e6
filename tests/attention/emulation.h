// Runs one CTA of a plain CUDA C++ kernel on the CPU: 256 fibers in lockstep from one synchronisation to the
// next. Only what the reference kernels use exists. Every thread of a CTA must reach the same synchronisations
// (true for those kernels); anything else fails the run. One CTA at a time in one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __syncthreads() ::bdcp::test::emulation::synchronize(1)

namespace bdcp::test::emulation {

struct Index {
  unsigned x = 0;
};
/// Of the fiber that runs.
Index& thread_index();
Index& block_index();
/// Ends this fiber's turn; `kind` must be the same in all fibers.
void synchronize(int kind);
/// `value` of the thread `lane` of this fiber's warp.
float shuffle(float value, unsigned lane);

/// Calls body() as every thread of CTA `block`. Throws std::runtime_error on divergence.
void run_block(unsigned block, unsigned threads, void (*body)(const void*), const void* args);

}  // namespace bdcp::test::emulation

#define threadIdx ::bdcp::test::emulation::thread_index()
#define blockIdx ::bdcp::test::emulation::block_index()

inline float __shfl_sync(unsigned, float value, int lane) {
  return ::bdcp::test::emulation::shuffle(value, static_cast<unsigned>(lane));
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return ::bdcp::test::emulation::shuffle(value, (threadIdx.x & 31) ^ static_cast<unsigned>(mask));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
