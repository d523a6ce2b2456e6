// The warps of hopper_forward that move data: one loads tiles, Q, K and V, one thread stores O. They have few
// registers, hence the values made opaque to the compiler: what does not vary would be computed in advance and
// kept.
#pragma once

#include "hopper_forward_shape.cuh"

namespace bdcp::kernel {

/// The warp that loads: tiles, Q, K and V.
struct HopperProducer {
  using Shape = HopperShape;
  static constexpr int kN = Config::kN;
  const HopperForwardArgs& args;
  int mine;        // this lane's word of the tile
  int head;        // of K and V
  int loaded = 0;  // blocks, of this tile and those before

  __device__ explicit HopperProducer(const HopperForwardArgs& a) : args(a) {}

  /// From shared memory each time: kept, it would cost a register.
  __device__ static int item_count() { return hopper_shared().item_count; }
  /// This CTA's item of a round where items are dealt out: of the first round, and of all without a ticket.
  /// Every other round goes backwards so that no CTA always gets the longer one.
  __device__ static int dealt(int round) {
    int ctas = gridDim.x, cta = blockIdx.x;
    asm volatile("" : "+r"(ctas), "+r"(cta));  // formed again, as in load_across
    return round * ctas + (round & 1 ? ctas - 1 - cta : cta);
  }
  __device__ int draw() const { return args.ticket && threadIdx.x % 32 == 0 ? atomicAdd(args.ticket, 1) : 0; }
  /// The item of a round from 1 on. Every CTA that has an item draws until one past the end: as many draws as
  /// there are items, and the last of them leaves the ticket at zero.
  __device__ int drawn_item(int round, int drawn) const {
    if (!args.ticket) return dealt(round);
    int value = __shfl_sync(0xffffffffu, drawn, 0), ctas = gridDim.x;
    asm volatile("" : "+r"(ctas));
    if (value == item_count() - 1 && threadIdx.x % 32 == 0) *args.ticket = 0;
    return ctas + value;
  }
  /// Which tile an item is, and which group of heads. Opaque, since what the divisions need would be kept in
  /// registers.
  __device__ int2 place(int item) const {
    int band = args.bands.items, heads = args.bands.heads;
    asm volatile("" : "+r"(band), "+r"(heads), "+r"(item));
    const int skipped = item / band;
    item -= skipped * band;
    const int tile = item / heads;
    return {tile, skipped * heads + item - tile * heads};
  }
  /// One word of a tile per lane.
  __device__ int load_tile(int item) const {
    constexpr int kWords = sizeof(HopperTile) / sizeof(int);
    if (item >= item_count()) return 0;
    int lane = threadIdx.x % kWords;
    asm volatile("" : "+r"(lane), "+r"(item));
    return reinterpret_cast<const int*>(args.tiles + place(item).x)[lane];
  }

  __device__ int word(int i) const { return __shfl_sync(0xffffffffu, mine, i); }

  __device__ void run() {
    int item = dealt(0);
    mine = load_tile(item);
#pragma unroll 1
    for (int round = 0;; ++round) {
      const int group = item < item_count() ? place(item).y : -1;
      head = group * Config::kPack / Config::kRatio;
      int block = group < 0 ? 0 : static_cast<int>((static_cast<u32>(word(3) - word(2)) + kN - 1) / kN);
      loaded += block;
      bool open = false;
      int drawn = 0, next = 0;
#pragma unroll 1
      do {  // V runs one block behind K
        // Drawn earlier, an item would stand behind this CTA's while others have nothing left to do.
        if (group >= 0 && (block == 1 || (block == 0 && !open))) drawn = draw();
        if (group >= 0 && block == 0) {
          item = drawn_item(round + 1, drawn);
          next = load_tile(item);  // arrives while the last block is loaded
        }
        if (block > 0) load_k(block - 1);
        if (open)
          load_v(block);
        else
          open_slot(round, group, block > 0);
        open = true;
      } while (--block >= 0);
      if (group < 0) return;
      mine = next;
    }
  }

  /// Tells the other warps of the tile, and loads Q.
  __device__ void open_slot(int round, int group, bool has_keys) {
    HopperShared& shared = hopper_shared();
    asm volatile("" : "+r"(round), "+r"(group), "+r"(mine));  // as below
    const int buffer = buffer_of<Config::kSlots>(round), lane = threadIdx.x % 32;
    const int q_begin = word(0), q_end = word(1);
    barrier_wait(smem_address(&shared.slot_empty[buffer]), parity_of<Config::kSlots>(round) ^ 1);
    HopperSlot& slot = shared.slots[buffer];
    if (lane < 8) reinterpret_cast<int*>(&slot.tile)[lane] = mine;
    if (lane == 8) slot.group = group;
    __syncwarp();
    if (lane != 0) return;
    barrier_arrive(smem_address(&shared.tile_full[buffer]));
    const u32 full = smem_address(&shared.q_full[buffer]);
    if (!has_keys) {  // the phases of the barrier count tiles, and nobody else waits for this one
      barrier_arrive(full);
      barrier_wait(full, parity_of<Config::kSlots>(round));
      return;
    }
    barrier_arrive_expect(full, Shape::kBytesQ);
    const int count = min(Config::kTokens, q_end - q_begin);
#pragma unroll
    for (int panel = 0; panel < Shape::kPanels; ++panel)
      tma_load_5d(q_address(buffer) + panel * Shape::kPanelQ, args.q, full, kEvictFirst, panel * 64, 0,
                  Config::kTokens - count, q_begin + count, group);
  }

  __device__ void load_k(int block) {
    asm volatile("" : "+r"(block), "+r"(loaded), "+r"(mine));
    const int use = loaded - 1 - block;
    HopperShared& shared = hopper_shared();
    const int buffer = buffer_of<Config::kStages>(use);
    load<Config::kDim, Shape::kPanels, Shape::kBytesK>(
        args.k, args.remote_k, args.k_border, args.k_rows, args.remote_k_rows, k_address(buffer),
        &shared.k_full[buffer], &shared.k_empty[buffer], block, use);
  }
  __device__ void load_v(int block) {
    asm volatile("" : "+r"(block), "+r"(loaded), "+r"(mine));
    const int use = loaded - 1 - block;
    HopperShared& shared = hopper_shared();
    const int buffer = buffer_of<Config::kStages>(use);
    load<Config::kDimV, Shape::kPanelsV, Shape::kBytesV>(
        args.v, args.remote_v, args.v_border, args.v_rows, args.remote_v_rows, v_address(buffer),
        &shared.v_full[buffer], &shared.v_empty[buffer], block, use);
  }

  /// Key positions of a block; zeros from the tile's k_end on, so that no other document's NaN meets P = 0.
  template <int kDim, int kPanels, int kBytes>
  __device__ void load(const TensorMap& local, const TensorMap& remote, const HopperBorder& border,
                       const Tensor& local_rows, const Tensor& remote_rows, u32 target, const u64* full_barrier,
                       const u64* empty_barrier, int block, int use) {
    const u32 full = smem_address(full_barrier);
    const int begin = word(2) + block * kN, count = min(kN, word(3) - begin);
    barrier_wait(smem_address(empty_barrier), parity_of<Config::kStages>(use) ^ 1);
    if (begin < args.remote_len && begin + count > args.remote_len) {
      load_across<kDim, kPanels>(border, local_rows, remote_rows, target, full, begin, count);
    } else if (threadIdx.x % 32 == 0) {
      const bool is_remote = begin < args.remote_len;
      const TensorMap& map = is_remote ? remote : local;
      const int row = is_remote ? begin : begin - args.remote_len;
      barrier_arrive_expect(full, kBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        tma_load_4d(target + panel * Shape::kPanelK, map, full, kEvictLast, panel * 64, kN - count, row + count,
                    head);
    }
  }

  /// The block with the last remote and the first local keys, in pieces as high as the border allows. Eight
  /// that are of both, and all of a block that is not full, are copied one by one.
  template <int kDim, int kPanels>
  __device__ void load_across(const HopperBorder& maps, const Tensor& local, const Tensor& remote, u32 target,
                              u32 full, int begin, int count) {
    // What does not vary would be computed in advance, for a path that hardly ever runs, and there are no
    // registers to keep it in.
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane), "+r"(target), "+r"(begin), "+r"(count));
#pragma unroll 1
    for (int first = 0; first < kN; first += 8)
      if (count < kN || is_of_both(first, begin))
        copy_eight<kDim, kPanels>(local, remote, target, first, begin, count);
    cp_async_wait_all();
    fence_async_proxy();
    __syncwarp();
    const bool some_of_both = (args.remote_len - begin) % 8 != 0;
    if (lane == 0) barrier_arrive_expect(full, count < kN ? 0 : (kN / 8 - some_of_both) * kPanels * 1024);
    __syncwarp();
    if (count < kN) return;
#pragma unroll 1
    for (; lane < (kN >> args.border_shift) * kPanels; lane += 32) {
      const int first = lane / kPanels << args.border_shift, panel = lane % kPanels;
      if (is_of_both(first, begin)) continue;
      const int position = begin + first;
      const bool far = position < args.remote_len;
      tma_load_4d(target + panel * Shape::kPanelK + first * 128, far ? maps.remote : maps.local, full,
                  kEvictLast, panel * 64, 0,
                  (far ? position : position - args.remote_len) + (1 << args.border_shift), head);
    }
  }
  __device__ bool is_of_both(int first, int begin) const {
    const int border = args.remote_len - begin;
    return border > first && border < first + 8;
  }
  template <int kDim, int kPanels>
  __device__ void copy_eight(const Tensor& local, const Tensor& remote, u32 target, int first, int begin,
                             int count) {
#pragma unroll 1
    for (int place = threadIdx.x % 32; place < 64 * kPanels; place += 32) {
      const int chunk = place % 8, row = first + place / 8 % 8, panel = place / 64;
      const int position = begin + row, column = panel * 64 + chunk * 8;
      const bool far = position < args.remote_len;
      const Tensor& from = far ? remote : local;
      const u16* source = static_cast<const u16*>(from.data) +
                          (far ? position : position - args.remote_len) * from.row_stride +
                          head * from.head_stride + column;
      cp_async_16(target + panel * Shape::kPanelK + row * 128 + ((chunk ^ row % 8) << 4), source,
                  row < count && column < kDim);
    }
  }
};

/// The thread that stores O.
__device__ inline void hopper_store(const HopperForwardArgs& args) {
  HopperShared& shared = hopper_shared();
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int buffer = buffer_of<Config::kSlots>(round);
    const u32 parity = parity_of<Config::kSlots>(round);
    barrier_wait(smem_address(&shared.tile_full[buffer]), parity);
    const HopperSlot& slot = shared.slots[buffer];
    const int group = slot.group, begin = slot.tile.q_begin;
    if (group < 0) return;
    const int count = min(Config::kTokens, slot.tile.q_end - begin);
    const bool has_result = !Config::kStaged || slot.tile.state <= 0;
    barrier_wait(smem_address(&shared.o_full[buffer]), parity);
    if (has_result) {
#pragma unroll
      for (int panel = 0; panel < HopperShape::kPanelsV; ++panel)
        tma_store_5d(args.out, q_address(buffer) + panel * HopperShape::kPanelQ, panel * 64, 0,
                     Config::kTokens - count, begin + count, group);
      tma_store_commit();
      tma_store_wait_read();
    }
    barrier_arrive(smem_address(&shared.slot_empty[buffer]));
  }
}

}  // namespace bdcp::kernel
