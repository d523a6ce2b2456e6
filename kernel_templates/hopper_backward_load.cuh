// The warps of hopper_backward that load: one tiles and keys, one rows. They have few registers, hence the
// values made opaque to the compiler.
#pragma once

#include "hopper_backward_shape.cuh"

namespace bdcp::kernel {

/// Blocks of rows in the order in which they are worked on: round all q heads of a K/V head, from any block.
struct HopperWalk {
  int block, head, left;
  __device__ HopperWalk(int blocks, int start, int q_head, int heads)
      : block(Config::kDescending ? blocks - 1 : start), head(q_head), left(blocks * heads) {}
  __device__ void next(int blocks) {
    --left;
    block += Config::kDescending ? -1 : 1;
    if (Config::kDescending ? block < 0 : block == blocks) {
      block = Config::kDescending ? blocks - 1 : 0;
      if (++head % Config::kRatio == 0) head -= Config::kRatio;
    }
  }
  __device__ void back(int blocks) {
    block -= Config::kDescending ? -1 : 1;
    if (Config::kDescending ? block == blocks : block < 0) {
      block = Config::kDescending ? 0 : blocks - 1;
      if (head-- % Config::kRatio == 0) head += Config::kRatio;
    }
  }
};

/// The warp that loads tiles, K and V.
struct HopperKeyProducer {
  using Shape = HopperBackwardShape;
  static constexpr int kM = Config::kM, kN = Config::kN;
  const HopperBackwardArgs& args;
  int round = 0, opened = 0;  // tiles; tiles with blocks

  __device__ explicit HopperKeyProducer(const HopperBackwardArgs& a) : args(a) {}

  __device__ static bool leads() { return threadIdx.x % 32 == 0; }

  /// Waits until a slot is free, and takes note if the tile that leaves it must be done again.
  __device__ void claim(int round) const {
    HopperBackwardShared& shared = hopper_shared();
    const int buffer = buffer_of<Config::kSlots>(round);
    barrier_wait(smem_address(&shared.slot_empty[buffer]), parity_of<Config::kSlots>(round) ^ 1);
    HopperBackwardSlot& slot = shared.slots[buffer];
    if (leads() && slot.again) {
      shared.again[shared.again_count++] = {slot.tile.seg_begin, slot.tile.seg_end, slot.head};
      slot.again = 0;
    }
    __syncwarp();
  }

  __device__ int draw() const { return uniform(leads() ? atomicAdd(args.ticket, 1) : 0); }

  __device__ void run() {
    HopperBackwardShared& shared = hopper_shared();
    int item = -1;
#pragma unroll 1
    for (;; ++round) {
      // Drawn earlier, an item would stand behind this CTA's while others have nothing left to do.
      if (round > 0) barrier_wait(smem_address(&shared.near_end), parity_of<1>(round - 1));
      if (item < 0) item = draw();
      claim(round);
      if (shared.again_count == 0 && item >= shared.item_count) {
        // What is still in flight may have to be done again.
#pragma unroll 1
        for (int i = 1; i < Config::kSlots; ++i) claim(round + i);
        if (shared.again_count == 0) return open(-1);
      }
      if (shared.again_count > 0) {
        open_document();
        load_tile();
      } else {
        open_tile(item);
        load_tile();
        item = -1;
      }
    }
  }

  __device__ HopperBackwardSlot& slot() const {
    return hopper_shared().slots[buffer_of<Config::kSlots>(round)];
  }

  __device__ static int item_limit() { return 1 << 30; }

  __device__ void open_tile(int item) const {
    const int split_items = Config::kSplit ? args.split_tiles * args.heads_q : 0;
    const bool split = item < split_items;
    if (!split) item -= split_items;
    int heads = split ? args.heads_q : args.bands.heads, band = split ? item_limit() : args.bands.items;
    asm volatile("" : "+r"(heads), "+r"(band), "+r"(item));  // what division by it needs would be kept
    const int skipped = item / band;
    item -= skipped * band;
    const int index = item / heads, head = skipped * heads + item - index * heads;
    const int tile = Config::kSplit && !split ? args.split_tiles + index : index;
    static_assert(sizeof(HopperKeyTile) == 64);
    HopperBackwardSlot& slot = this->slot();
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane));
    if (lane < 16)
      reinterpret_cast<int*>(&slot.tile)[lane] = reinterpret_cast<const int*>(args.tiles + tile)[lane];
    if (leads()) take_heads(slot, split ? head / Config::kRatio : head, split ? head : -1, tile);
    __syncwarp();
    if (const int rows_at = slot.tile.rows_at; rows_at >= 0) {
      const int count = slot.tile.k_end - slot.tile.k_begin;
#pragma unroll 1
      for (; lane < kN; lane += 32)
        cp_async_16(smem_address(slot.keys + lane), args.key_rows + rows_at + lane, lane < count);
    } else if (lane == 0) {
      slot.one = {0, 0, 0, 0};
      if (slot.tile.seg_begin < slot.tile.seg_end) slot.one = args.segments[slot.tile.seg_begin];
    }
    open(split ? head / Config::kRatio : head);
  }
  /// `q_head`: the only one of the item; negative: all.
  __device__ void take_heads(HopperBackwardSlot& slot, int head, int q_head, int tile) const {
    slot.q_head = q_head < 0 ? head * Config::kRatio : q_head;
    slot.heads = q_head < 0 ? Config::kRatio : 1;
    slot.group = q_head < 0 ? -1 : tile * args.heads_kv + head;
  }
  /// The next document of the tile that is done again.
  __device__ void open_document() const {
    HopperBackwardShared& shared = hopper_shared();
    HopperBackwardSlot& slot = this->slot();
    HopperAgain& again = shared.again[shared.again_count - 1];
    const int segment = again.seg_begin, head = again.head;
    __syncwarp();
    if (leads() && ++again.seg_begin == again.seg_end) --shared.again_count;
    if (leads()) {
      const Segment one = args.segments[segment];
      slot.one = one;
      slot.tile = {one.k_begin, one.k_end, one.q_begin, one.q_end, 0, 0, segment, segment + 1, -1, -1, 0, {}};
      take_heads(slot, head, -1, 0);
    }
    open(head);
  }
  __device__ void open(int head) const {
    const int buffer = buffer_of<Config::kSlots>(round);
    const u32 full = smem_address(&hopper_shared().tile_full[buffer]);
    barrier_arrive_after_copies(full);
    if (leads()) {
      HopperBackwardSlot& slot = hopper_shared().slots[buffer];
      slot.head = head;
      slot.phase = opened & 1;
      slot.skipped = hopper_shared().skipped;
      if (head >= 0 && slot.tile.sum_block < 0) hopper_shared().skipped += blocks_of(slot.tile) * slot.heads;
      barrier_arrive(full);
    }
    __syncwarp();
  }

  /// V is free before K is: its last product comes earlier.
  __device__ void load_tile() {
    HopperBackwardShared& shared = hopper_shared();
    if (blocks_of(slot().tile) <= 0) return;
    load_keys<Shape::kPanelsV, Shape::kBytesV>(args.v, args.remote_v, v_address(), &shared.v_full,
                                               &shared.v_empty);
    load_keys<Shape::kPanels, Shape::kBytesK>(args.k, args.remote_k, k_address(), &shared.k_full,
                                              &shared.k_empty);
    ++opened;
  }

  /// The tile's keys; zeros from its k_end on. A tile across the border is left to HopperKeyConsumer.
  template <int kPanels, int kBytes>
  __device__ void load_keys(const TensorMap& local, const TensorMap& remote, u32 target,
                            const u64* full_barrier, const u64* empty_barrier) const {
    asm volatile("" : "+r"(target));
    const u32 full = smem_address(full_barrier);
    barrier_wait(smem_address(empty_barrier), parity_of<1>(opened) ^ 1);
    if (leads()) {
      const int begin = slot().tile.k_begin, count = slot().tile.k_end - begin;
      if (begin < args.remote_len && begin + count > args.remote_len) {
        barrier_arrive(full);
      } else {
        const bool is_remote = begin < args.remote_len;
        const TensorMap& map = is_remote ? remote : local;
        const int row = is_remote ? begin : begin - args.remote_len;
        barrier_arrive_expect(full, kBytes);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
          tma_load_4d(target + panel * Shape::kPanelN, map, full, kEvictFirst, panel * 64, kN - count,
                      row + count, slot().head);
      }
    }
    __syncwarp();
  }
};

/// The warp that loads blocks of Q and dO, with their LSE and delta unless HopperDelta forms these.
struct HopperRowProducer {
  using Shape = HopperBackwardShape;
  static constexpr int kM = Config::kM;
  static constexpr int kAhead = 2;  // blocks to be loaded when the next item is drawn; more are in flight
  const HopperBackwardArgs& args;
  int used = 0;  // blocks

  __device__ explicit HopperRowProducer(const HopperBackwardArgs& a) : args(a) {}

  __device__ void run() {
    HopperBackwardShared& shared = hopper_shared();
#pragma unroll 1
    for (int round = 0;; ++round) {
      const HopperBackwardSlot& slot = await_slot(round);
      if (slot.head < 0) return;
      const int blocks = blocks_of(slot.tile);
      HopperWalk walk(blocks, slot.tile.start, slot.q_head, slot.heads);
      const int q_begin = slot.tile.q_begin, q_end = slot.tile.q_end;
      __syncwarp();
      if (threadIdx.x % 32 == 0)
        barrier_arrive(smem_address(&shared.slot_empty[buffer_of<Config::kSlots>(round)]));
      if (walk.left < kAhead) draw_next();
#pragma unroll 1
      for (; walk.left > 0; walk.next(blocks), ++used) {
        if (walk.left == kAhead) draw_next();
        const int row = q_begin + walk.block * kM;
        load(walk.head, row, min(kM, q_end - row));
      }
    }
  }

  /// The key warp may draw: this tile is near its end.
  __device__ static void draw_next() {
    if (threadIdx.x % 32 == 0) barrier_arrive(smem_address(&hopper_shared().near_end));
    __syncwarp();
  }
  __device__ void copy_values(u32 target, const float* values, int head, int row, int count) const {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane), "+r"(head));
    values += head * args.rows + row + lane;
#pragma unroll
    for (int i = 0; i < kM; i += 32) cp_async_4(target + (lane + i) * 4, values + i, lane + i < count);
  }
  /// Q and dO of a block, and LSE and delta unless HopperDelta forms them; zeros past its `count` rows, so that
  /// no other document's NaN meets P = 0.
  __device__ void load(int head, int row, int count) {
    HopperBackwardShared& shared = hopper_shared();
    asm volatile("" : "+r"(used));
    {
      const int stage = buffer_of<Config::kStages>(used);
      const u32 full = smem_address(&shared.q_full[stage]);
      barrier_wait(smem_address(&shared.q_empty[stage]), parity_of<Config::kStages>(used) ^ 1);
      if constexpr (Config::kSums) {
        copy_values(smem_address(shared.lse[stage]), args.lse, head, row, count);
        copy_values(smem_address(shared.delta[stage]), args.delta, head, row, count);
        barrier_arrive_after_copies(full);
      }
      if (threadIdx.x % 32 == 0) {
        barrier_arrive_expect(full, Shape::kBytesQ);
#pragma unroll
        for (int panel = 0; panel < Shape::kPanels; ++panel)
          tma_load_4d(q_address(stage) + panel * Shape::kPanelM, args.q, full, kEvictLast, panel * 64,
                      kM - count, row + count, head);
      }
    }
    const int stage = buffer_of<Config::kStagesDo>(used);
    const u32 full = smem_address(&shared.do_full[stage]);
    barrier_wait(smem_address(&shared.do_empty[stage]), parity_of<Config::kStagesDo>(used) ^ 1);
    if (threadIdx.x % 32 == 0) {
      barrier_arrive_expect(full, Shape::kBytesDo);
#pragma unroll
      for (int panel = 0; panel < Shape::kPanelsV; ++panel)
        tma_load_4d(do_address(stage) + panel * Shape::kPanelM, args.dout, full, kEvictLast, panel * 64,
                    kM - count, row + count, head);
    }
    __syncwarp();
  }
};

}  // namespace bdcp::kernel
