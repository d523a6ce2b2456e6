// What a CTA of portable_backward holds, and how it loads keys and blocks of rows.
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

/// One tile of keys.
struct BackwardLoads {
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

  __device__ BackwardLoads(const PortableBackwardArgs& a, char* smem)
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
};

}  // namespace bdcp::kernel
