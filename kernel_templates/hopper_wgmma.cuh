// wgmma: m64nNk16 of 16-bit operands into fp32 accumulators, for N = 16, 32 .. 256. Includes nothing.
//
// Thread t of a warpgroup holds rows r = t / 32 * 16 + t % 32 / 4 and r + 8: d[4 * j + i] is row r + i / 2 * 8,
// column 8 * j + t % 4 * 2 + i % 2.
#pragma once

namespace bdcp::kernel {

typedef unsigned long long u64;
typedef unsigned int u32;

// The accumulators of an instruction of N columns, as text and as operands: lists that grow by 16 columns.
#define BDCP_ACC_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define BDCP_ACC_32 \
  BDCP_ACC_16       \
  ","               \
  "%8,%9,%10,%11,%12,%13,%14,%15"
#define BDCP_ACC_48 \
  BDCP_ACC_32       \
  ","               \
  "%16,%17,%18,%19,%20,%21,%22,%23"
#define BDCP_ACC_64 \
  BDCP_ACC_48       \
  ","               \
  "%24,%25,%26,%27,%28,%29,%30,%31"
#define BDCP_ACC_80 \
  BDCP_ACC_64       \
  ","               \
  "%32,%33,%34,%35,%36,%37,%38,%39"
#define BDCP_ACC_96 \
  BDCP_ACC_80       \
  ","               \
  "%40,%41,%42,%43,%44,%45,%46,%47"
#define BDCP_ACC_112 \
  BDCP_ACC_96        \
  ","                \
  "%48,%49,%50,%51,%52,%53,%54,%55"
#define BDCP_ACC_128 \
  BDCP_ACC_112       \
  ","                \
  "%56,%57,%58,%59,%60,%61,%62,%63"
#define BDCP_ACC_144 \
  BDCP_ACC_128       \
  ","                \
  "%64,%65,%66,%67,%68,%69,%70,%71"
#define BDCP_ACC_160 \
  BDCP_ACC_144       \
  ","                \
  "%72,%73,%74,%75,%76,%77,%78,%79"
#define BDCP_ACC_176 \
  BDCP_ACC_160       \
  ","                \
  "%80,%81,%82,%83,%84,%85,%86,%87"
#define BDCP_ACC_192 \
  BDCP_ACC_176       \
  ","                \
  "%88,%89,%90,%91,%92,%93,%94,%95"
#define BDCP_ACC_208 \
  BDCP_ACC_192       \
  ","                \
  "%96,%97,%98,%99,%100,%101,%102,%103"
#define BDCP_ACC_224 \
  BDCP_ACC_208       \
  ","                \
  "%104,%105,%106,%107,%108,%109,%110,%111"
#define BDCP_ACC_240 \
  BDCP_ACC_224       \
  ","                \
  "%112,%113,%114,%115,%116,%117,%118,%119"
#define BDCP_ACC_256 \
  BDCP_ACC_240       \
  ","                \
  "%120,%121,%122,%123,%124,%125,%126,%127"
#define BDCP_OUT_16(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define BDCP_OUT_32(d)                                                                                     \
  BDCP_OUT_16(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
      "+f"(d[15])
#define BDCP_OUT_48(d)                                                                                       \
  BDCP_OUT_32(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), \
      "+f"(d[23])
#define BDCP_OUT_64(d)                                                                                       \
  BDCP_OUT_48(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), \
      "+f"(d[31])
#define BDCP_OUT_80(d)                                                                                       \
  BDCP_OUT_64(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), \
      "+f"(d[39])
#define BDCP_OUT_96(d)                                                                                       \
  BDCP_OUT_80(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), \
      "+f"(d[47])
#define BDCP_OUT_112(d)                                                                                      \
  BDCP_OUT_96(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), \
      "+f"(d[55])
#define BDCP_OUT_128(d)                                                                                       \
  BDCP_OUT_112(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
      "+f"(d[63])
#define BDCP_OUT_144(d)                                                                                       \
  BDCP_OUT_128(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), \
      "+f"(d[71])
#define BDCP_OUT_160(d)                                                                                       \
  BDCP_OUT_144(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), \
      "+f"(d[79])
#define BDCP_OUT_176(d)                                                                                       \
  BDCP_OUT_160(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), \
      "+f"(d[87])
#define BDCP_OUT_192(d)                                                                                       \
  BDCP_OUT_176(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), \
      "+f"(d[95])
#define BDCP_OUT_208(d)                                                                            \
  BDCP_OUT_192(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
      "+f"(d[102]), "+f"(d[103])
#define BDCP_OUT_224(d)                                                                                \
  BDCP_OUT_208(d), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), \
      "+f"(d[110]), "+f"(d[111])
#define BDCP_OUT_240(d)                                                                                \
  BDCP_OUT_224(d), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), \
      "+f"(d[118]), "+f"(d[119])
#define BDCP_OUT_256(d)                                                                                \
  BDCP_OUT_240(d), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), \
      "+f"(d[126]), "+f"(d[127])

/// d (+)= a * b. kTrans: the operand is MN-major in shared memory. `accumulate` 0: d is overwritten.
template <int kColumns>
struct Wgmma;

#define BDCP_WGMMA_SS(N, TYPE, I0, I1, I2, I3, I4)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" I2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N     \
               "k16.f32." TYPE "." TYPE " {" BDCP_ACC_##N "}, %" I0 ", %" I1 ", p, 1, 1, %" I3 ", %" I4 \
                                                          ";\n}\n"                                      \
               : BDCP_OUT_##N(d)                                                                        \
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB))
#define BDCP_WGMMA_RS(N, TYPE, I0, I1, I2, I3, I4, I5, I6)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" I5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N    \
               "k16.f32." TYPE "." TYPE " {" BDCP_ACC_##N "}, {%" I0 ",%" I1 ",%" I2 ",%" I3 "}, %" I4 \
                                                          ", p, 1, 1, %" I6 ";\n}\n"                   \
               : BDCP_OUT_##N(d)                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB))
#define BDCP_WGMMA(N, I0, I1, I2, I3, I4, I5, I6)                                                   \
  template <>                                                                                       \
  struct Wgmma<N> {                                                                                 \
    template <bool kBf16, int kTransA, int kTransB>                                                 \
    __device__ static void from_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate) {           \
      if constexpr (kBf16)                                                                          \
        BDCP_WGMMA_SS(N, "bf16", I0, I1, I2, I3, I4);                                               \
      else                                                                                          \
        BDCP_WGMMA_SS(N, "f16", I0, I1, I2, I3, I4);                                                \
    }                                                                                               \
    template <bool kBf16, int kTransB>                                                              \
    __device__ static void from_registers(float (&d)[N / 2], const u32* a, u64 b, int accumulate) { \
      if constexpr (kBf16)                                                                          \
        BDCP_WGMMA_RS(N, "bf16", I0, I1, I2, I3, I4, I5, I6);                                       \
      else                                                                                          \
        BDCP_WGMMA_RS(N, "f16", I0, I1, I2, I3, I4, I5, I6);                                        \
    }                                                                                               \
  };

BDCP_WGMMA(16, "8", "9", "10", "11", "12", "13", "14")
BDCP_WGMMA(32, "16", "17", "18", "19", "20", "21", "22")
BDCP_WGMMA(48, "24", "25", "26", "27", "28", "29", "30")
BDCP_WGMMA(64, "32", "33", "34", "35", "36", "37", "38")
BDCP_WGMMA(80, "40", "41", "42", "43", "44", "45", "46")
BDCP_WGMMA(96, "48", "49", "50", "51", "52", "53", "54")
BDCP_WGMMA(112, "56", "57", "58", "59", "60", "61", "62")
BDCP_WGMMA(128, "64", "65", "66", "67", "68", "69", "70")
BDCP_WGMMA(144, "72", "73", "74", "75", "76", "77", "78")
BDCP_WGMMA(160, "80", "81", "82", "83", "84", "85", "86")
BDCP_WGMMA(176, "88", "89", "90", "91", "92", "93", "94")
BDCP_WGMMA(192, "96", "97", "98", "99", "100", "101", "102")
BDCP_WGMMA(208, "104", "105", "106", "107", "108", "109", "110")
BDCP_WGMMA(224, "112", "113", "114", "115", "116", "117", "118")
BDCP_WGMMA(240, "120", "121", "122", "123", "124", "125", "126")
BDCP_WGMMA(256, "128", "129", "130", "131", "132", "133", "134")

#undef BDCP_WGMMA
#undef BDCP_WGMMA_RS
#undef BDCP_WGMMA_SS

/// Keeps uses of `x` on their side of this point: what wgmma reads and writes meanwhile the compiler cannot
/// see.
template <int kCount>
__device__ inline void pin_registers(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ inline void pin_registers(u32 (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

/// The same, eight to a statement: compiles faster. In the backward it makes the compiler order things
/// otherwise.
#define BDCP_PIN_EIGHT(constraint, x, i)                                                             \
  asm volatile(""                                                                                    \
               : constraint(x[i]), constraint(x[i + 1]), constraint(x[i + 2]), constraint(x[i + 3]), \
                 constraint(x[i + 4]), constraint(x[i + 5]), constraint(x[i + 6]),                   \
                 constraint(x[i + 7])::"memory")
template <int kCount>
__device__ inline void pin_eights(float (&x)[kCount]) {
  static_assert(kCount % 8 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 8) BDCP_PIN_EIGHT("+f", x, i);
}
template <int kCount>
__device__ inline void pin_eights(u32 (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 8 * 8; i += 8) BDCP_PIN_EIGHT("+r", x, i);
#pragma unroll
  for (int i = kCount / 8 * 8; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}
#undef BDCP_PIN_EIGHT

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Upper half of a descriptor for the 128-byte swizzle: 1024 bytes from one group of 8 rows to the next.
constexpr u32 kDescriptorHigh = 1u << 30 | 1024 / 16;
/// Panels of 64 columns, `rows` rows of 128 bytes each, 1024-byte aligned. `panel_bytes` (from one 64-column
/// panel to the next) matters to MN-major operands of more than 64 columns.
__device__ inline u64 descriptor(u32 address, u32 panel_bytes) {
  return static_cast<u64>(kDescriptorHigh) << 32 | (address >> 4 & 0x3fff) | panel_bytes / 16 << 16;
}

}  // namespace bdcp::kernel
