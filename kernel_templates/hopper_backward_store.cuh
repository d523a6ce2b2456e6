// Rows of accumulators to global memory, rounded to 16 bits.
#pragma once

#include "hopper_backward_args.h"
#include "portable_common.cuh"

namespace bdcp::kernel {

/// How warpgroups share a block's dQ: 64 rows each or, where the block has no more, parts of the columns in
/// turn.
struct HopperDqShape {
  static constexpr bool kWide = Config::kDim > 128 || Config::kDimV > 128;  // see HopperWideConsumer
  static constexpr bool kSplitRows = Config::kM == 128;
  static constexpr int kColumns = kSplitRows                   ? (Config::kDim + 15) / 16 * 16
                                  : kWide || Config::kDim > 64 ? 64
                                                               : 32;
  static constexpr int kParts = kWide ? (Config::kDim + 63) / 64 : 2;
  static constexpr int kFloats = 64 * kColumns;  // of a part, as accumulators stand: [column / 8][thread][4]
};

/// A quad's part of one row: 8 * kTiles columns from `target` on, of which `columns` (a multiple of 8) exist.
/// value(tile, i): the lane's two columns of an n8 tile. All lanes of a warp call together; `real`: whether the
/// quad's row is to be written. Rows start on 16 bytes.
template <bool kBf16, int kTiles, class Value>
__device__ inline void store_row(u16* target, int columns, bool real, Value value) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; tile += 4) {
    u32 word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (tile + i < kTiles) word[i] = pack_16<kBf16>(value(tile + i, 0), value(tile + i, 1));
    transpose_quad(word);  // a whole tile per lane: 16 bytes
    const int column = (tile + lane) * 8;
    if (real && column < columns)
      *reinterpret_cast<uint4*>(target + column) = make_uint4(word[0], word[1], word[2], word[3]);
  }
}

/// A part of dQ of the block that begins at `row`, up to row `end`.
__device__ inline void store_dq(const Tensor& to, const float (&dq)[HopperDqShape::kColumns / 2], float scale,
                                int part, int head, int row, int end) {
  const int column = HopperDqShape::kSplitRows ? 0 : part * HopperDqShape::kColumns;
  const int thread = threadIdx.x % 128;
  row += (HopperDqShape::kSplitRows ? part * 64 : 0) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half, row += 8) {
    u16* target = static_cast<u16*>(to.data) + row * to.row_stride + head * to.head_stride + column;
    const auto value = [&](int n, int i) { return dq[4 * n + 2 * half + i] * scale; };
    if constexpr (HopperDqShape::kWide) {  // in pieces of four bytes, which cost fewer registers
#pragma unroll
      for (int n = 0; n < HopperDqShape::kColumns / 8; ++n)
        if (row < end && n * 8 < Config::kDim - column)
          *reinterpret_cast<u32*>(target + n * 8 + thread % 4 * 2) =
              pack_16<Config::kBf16>(value(n, 0), value(n, 1));
    } else {
      store_row<Config::kBf16, HopperDqShape::kColumns / 8>(target, Config::kDim - column, row < end, value);
    }
  }
}

}  // namespace bdcp::kernel
