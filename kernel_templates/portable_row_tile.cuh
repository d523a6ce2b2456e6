// What the kernels that keep a tile of query rows and walk its K/V blocks share (portable_forward,
// portable_backward_dq): the tile, who sees which keys, loads and stores of rows.
//
// Config: kDim, kDimV, kPack (q heads per row group), kRatio (q heads per K/V head), kM rows, kN keys, kWarps,
// kAligned (16-byte rows).
#pragma once

#include "portable_args.h"
#include "portable_common.cuh"
#include "portable_rows.cuh"

namespace bdcp::kernel {

struct RowShape {
  static constexpr int kThreads = Config::kWarps * 32;
  static constexpr int kMt = Config::kM / (16 * Config::kWarps);  // m16 tiles per warp
  static constexpr int kDimPad = (Config::kDim + 15) / 16 * 16;
  static constexpr int kDimVPad = (Config::kDimV + 15) / 16 * 16;
  // Row pitch in elements: an odd number of 16-byte chunks, so that ldmatrix meets no bank conflict.
  static constexpr int kPitchK = kDimPad + 8;
  static constexpr int kPitchV = kDimVPad + 8;
  static constexpr int kTokens = Config::kM / Config::kPack;
  static constexpr int kBytesK = Config::kN * kPitchK * 2;
  static constexpr int kBytesV = Config::kN * kPitchV * 2;
  static_assert(Config::kM == kMt * 16 * Config::kWarps && Config::kN % 16 == 0,
                "tile does not split into mma shapes");
  static_assert(kTokens >= 1, "kPack exceeds the row tile");
};

/// What a CTA keeps in shared memory rather than in registers of the main loop; its buffers follow.
struct alignas(16) RowShared {
  int2 visible[Config::kM];     // per row of the tile: the key positions [x, y) it may see
  int2 needed[Config::kWarps];  // their union over a warp's rows
  PortableTile tile;
  int2 loaded;     // key positions [x, y) that are read; others arrive as zeros
  int head_begin;  // first q head
  int only;        // the one document of this pass; negative: all of the tile's
};

template <class Args>
struct RowTile {
  using Shape = RowShape;
  static constexpr int kMt = Shape::kMt, kN = Config::kN;

  const Args& args;

  // Shared addresses and the thread's place are formed where they are needed: kept, they would cost registers
  // of the main loop.
  __device__ static RowShared& shared() { return *reinterpret_cast<RowShared*>(dynamic_shared()); }
  __device__ static int thread() { return formed_again(threadIdx.x); }
  __device__ static int lane() { return thread() % 32; }
  __device__ static int warp() { return thread() / 32; }

  __device__ explicit RowTile(const Args& a) : args(a) {
    if (threadIdx.x == 0) {
      shared().tile = args.tiles[blockIdx.x / args.head_groups];
      shared().head_begin = static_cast<int>(blockIdx.x) % args.head_groups * Config::kPack;
    }
    __syncthreads();
  }

  /// The tile's K/V blocks; walks meet them right to left.
  __device__ static int blocks() {
    const int keys = shared().tile.k_end - shared().tile.k_begin;
    return keys <= 0 ? 0 : (keys - 1) / kN + 1;
  }
  /// Whether some of a block's keys are not seen by every row of the tile.
  __device__ static bool is_masked(int block) {
    return block < shared().tile.full_begin || shared().tile.full_end - block < kN;
  }
  /// Whether any of the warp's rows sees a key of the block.
  __device__ static bool is_needed(int block) {
    const int2 mine = shared().needed[warp()];
    return block < mine.y && mine.x - block < kN;
  }

  __device__ int token_of(int row) const { return shared().tile.q_begin + row / Config::kPack; }
  __device__ bool is_real(int row) const {
    // Lengths, not positions: a sum of positions may pass 2^31.
    return row < Shape::kTokens * Config::kPack &&
           row / Config::kPack < shared().tile.q_end - shared().tile.q_begin;
  }

  /// The tile's rows of Q or dO.
  template <int kDim, int kPad, int kPitch>
  __device__ void load_rows(u32 smem, const Tensor& tensor) const {
    using Copy = RowCopy<Shape::kThreads, kDim, kPad, kPitch>;
    const int t = thread();
    const u16* base =
        static_cast<const u16*>(tensor.data) + shared().head_begin * tensor.head_stride + Copy::chunk(t) * 8;
#pragma unroll 2
    for (int row = Copy::row(t); row < Config::kM; row += Copy::kStep)
      Copy::copy(smem, row, Copy::chunk(t),
                 base + token_of(row) * tensor.row_stride + row % Config::kPack * tensor.head_stride,
                 is_real(row));
  }

  /// Key positions [block, block + kN) of K or V; zeros outside `loaded`. Positions below remote_len lie in the
  /// remote rows.
  template <int kDim, int kPad, int kPitch>
  __device__ void load_keys(u32 smem, const Tensor& local, const Tensor& remote, int block) const {
    using Copy = RowCopy<Shape::kThreads, kDim, kPad, kPitch>;
    constexpr int kPasses = (kN + Copy::kStep - 1) / Copy::kStep;
    constexpr bool kEven = kN % Copy::kStep == 0;  // else some threads have a row less
    const int head = shared().head_begin / Config::kRatio, t = thread();
    const int chunk = Copy::chunk(t), first = block + Copy::row(t);
    const int begin = shared().loaded.x, end = shared().loaded.y;
    const u16* near = static_cast<const u16*>(local.data) + head * local.head_stride + chunk * 8;
    const u16* far = static_cast<const u16*>(remote.data) + head * remote.head_stride + chunk * 8;
    if (block >= args.remote_len) {
      const u16* source = near + (first - args.remote_len) * local.row_stride;
      const i64 step = Copy::kStep * local.row_stride;
#pragma unroll
      for (int i = 0; i < kPasses; ++i, source += step)
        if (kEven || Copy::row(t) + i * Copy::kStep < kN)
          Copy::copy(smem, Copy::row(t) + i * Copy::kStep, chunk, source,
                     first + i * Copy::kStep >= begin && first + i * Copy::kStep < end);
    } else {
#pragma unroll 1
      for (int i = 0; i < kPasses; ++i) {
        if (!kEven && Copy::row(t) + i * Copy::kStep >= kN) break;
        const int position = first + i * Copy::kStep;
        const u16* source = position < args.remote_len ? far + position * remote.row_stride
                                                       : near + (position - args.remote_len) * local.row_stride;
        Copy::copy(smem, Copy::row(t) + i * Copy::kStep, chunk, source, position >= begin && position < end);
      }
    }
  }

  /// Visible keys of each row, from segments [seg_begin, seg_end); rows of none of them see nothing. Warps fill
  /// their own.
  __device__ void find_visible(int seg_begin, int seg_end) {
    const int lane = RowTile::lane(), warp = RowTile::warp();
    int warp_first = 0x7fffffff, warp_end = 0;
#pragma unroll 1
    for (int row = warp * kMt * 16 + lane; row < (warp + 1) * kMt * 16; row += 32) {
      const int token = token_of(row);
      int2 keys = make_int2(0, 0);
      for (int s = seg_begin; s < seg_end; ++s) {
        const Segment segment = args.segments[s];
        // Bottom-right aligned: the segment's last row sees all of its keys.
        const int end = segment.k_end - (segment.q_end - 1 - token);
        if (is_real(row) && token >= segment.q_begin && token < segment.q_end && end > segment.k_begin)
          keys = make_int2(segment.k_begin, end);
      }
      shared().visible[row] = keys;
      if (keys.y > keys.x) {
        warp_first = min(warp_first, keys.x);
        warp_end = max(warp_end, keys.y);
      }
    }
    __syncwarp();
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      warp_first = min(warp_first, __shfl_xor_sync(0xffffffffu, warp_first, offset));
      warp_end = max(warp_end, __shfl_xor_sync(0xffffffffu, warp_end, offset));
    }
    if (lane == 0) shared().needed[warp] = make_int2(warp_first, warp_end);
    __syncwarp();
  }

  /// Results that lie in the warp's own rows of shared memory go to `tensor`; rows outside [token_begin,
  /// token_end) are left alone.
  template <int kDim, int kPitch>
  __device__ void write_rows(u32 smem, const Tensor& tensor, int token_begin, int token_end) const {
    const int lane = RowTile::lane(), warp = RowTile::warp();
    __syncwarp();
    constexpr int kChunks = (kDim + 7) / 8, kWarpRows = kMt * 16;
    u16* base = static_cast<u16*>(tensor.data);
    for (int index = lane; index < kWarpRows * kChunks; index += 32) {
      const int row = warp * kWarpRows + index / kChunks, chunk = index % kChunks;
      const int token = token_of(row);
      if (!is_real(row) || token < token_begin || token >= token_end) continue;
      u16* target = base + token * tensor.row_stride +
                    (shared().head_begin + row % Config::kPack) * tensor.head_stride + chunk * 8;
      u32 word[4];
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                   : "r"(smem + (row * kPitch + chunk * 8) * 2)
                   : "memory");
      if constexpr (Config::kAligned) {
        *reinterpret_cast<uint4*>(target) = make_uint4(word[0], word[1], word[2], word[3]);
      } else {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          target[2 * w] = static_cast<u16>(word[w]);
          target[2 * w + 1] = static_cast<u16>(word[w] >> 16);
        }
      }
    }
    __syncwarp();
  }
};

}  // namespace bdcp::kernel
