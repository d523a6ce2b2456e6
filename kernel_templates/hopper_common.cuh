// Building blocks of the Hopper kernels: transactions of mbarriers, TMA, named barriers, register budgets.
// sm_90a.
#pragma once

#include "hopper_args.h"
#include "hopper_wgmma.cuh"
#include "portable_common.cuh"

namespace bdcp::kernel {

__device__ inline void barrier_arrive_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Arrives and waits for all others.
__device__ inline void barrier_meet(u32 barrier) {
  asm volatile(
      "{.reg .b64 state;\n.reg .pred done;\n"
      "mbarrier.arrive.shared.b64 state, [%0];\n"
      "again:\n"
      " mbarrier.try_wait.shared.b64 done, [%0], state;\n"
      " @!done bra again;}\n" ::"r"(barrier)
      : "memory");
}
/// For several threads.
__device__ inline void barrier_arrive_for(u32 barrier, int threads) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
/// Whether `mine` holds in any of the threads.
__device__ inline bool named_barrier_any(int barrier, int threads, bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

/// Shared memory written by ordinary stores becomes visible to wgmma and TMA.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

__device__ inline int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;\n" ::"l"(to), "r"(value) : "memory");
}

__device__ inline int load_relaxed(const int* from) {
  int value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}
/// `value` if it was `expected`; the value before.
__device__ inline int exchange_if(int* place, int expected, int value) {
  int before;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;\n"
               : "=r"(before)
               : "l"(place), "r"(expected), "r"(value)
               : "memory");
  return before;
}

template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// L2 policies, as createpolicy encodes them.
constexpr u64 kEvictFirst = 0x12f0000000000000ull, kEvictLast = 0x14f0000000000000ull;

__device__ inline void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
/// Some of a box must be inside the tensor: of one that is not, the hardware touches the map's base, which may
/// be an address that nothing is at (it faults where that is not mapped; seen on an H200).
__device__ inline void tma_load_4d(u32 dst, const TensorMap& map, u32 barrier, u64 policy, int c0, int c1,
                                   int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3,%4,%5,%6}], [%2], %7;\n" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
__device__ inline void tma_load_5d(u32 dst, const TensorMap& map, u32 barrier, u64 policy, int c0, int c1,
                                   int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;\n" ::"r"(dst),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
}
__device__ inline void tma_store_5d(const TensorMap& map, u32 src, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2,%3,%4,%5,%6}], [%1];\n" ::"l"(&map),
      "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
/// The stores have read shared memory.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

/// Adds `bytes` of f32 from shared to global memory; both multiples of 16 bytes.
__device__ inline void bulk_add(float* target, u32 src, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(target),
               "r"(src), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_store(float* target, u32 src, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(target), "r"(src),
               "r"(bytes)
               : "memory");
}
/// The bulk copies of this thread are complete.
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }

/// Four 8x8 matrices of 16-bit elements into shared memory; each lane gives the address of one row.
__device__ inline void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// Buffer and phase of the `count`th use of a ring. Readers wait for the parity; writers for the opposite one,
/// which buffers that were never filled already have.
template <int kBuffers>
__device__ inline int buffer_of(int count) {
  return count % kBuffers;
}
template <int kBuffers>
__device__ inline u32 parity_of(int count) {
  return count / kBuffers & 1;
}

/// Of the same value in every lane, in a register that all lanes share.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

}  // namespace bdcp::kernel
