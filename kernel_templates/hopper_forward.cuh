// Forward on Hopper: wgmma fed by TMA, specialised warps, a persistent grid. sm_90a.
//
// One warp loads, one stores, Config::kWgs warpgroups of 64 rows each compute. A tile is kTokens tokens by kPack q
// heads; its rows walk the K/V blocks from the diagonal leftwards. While a warpgroup does its softmax, its own
// P * V and the other warpgroups' products keep the tensor cores busy. K/V of the next tile is loaded while this
// one is finished, and O leaves through Q's buffer.
//
// Config: kBf16, kDim, kDimV (real head dims), kPack (q heads per row group), kRatio (q heads per K/V head), kTokens
// per tile, kWgs, kN keys per block, kStages of K and V, kSlots of Q, kSmem (dynamic shared memory).
#pragma once

#include "hopper_common.cuh"

namespace bdcp::kernel {

struct HopperShape {
  static constexpr int kM = 64 * Config::kWgs, kN = Config::kN;
  static constexpr int kThreads = 128 * (Config::kWgs + 1);
  static constexpr int kSteps = (Config::kDim + 15) / 16;  // k16 steps of Q * K
  static constexpr int kColumns = (Config::kDimV + 15) / 16 * 16;  // of O
  // Panels of 64 columns: what one 128-byte row holds.
  static constexpr int kPanels = (Config::kDim + 63) / 64, kPanelsV = (Config::kDimV + 63) / 64;
  static constexpr int kPanelQ = kM * 128, kPanelK = kN * 128;
  static constexpr int kBytesQ = kPanels * Config::kTokens * Config::kPack * 128;
  static constexpr int kSlotBytes = (kPanels > kPanelsV ? kPanels : kPanelsV) * kPanelQ;
  static constexpr int kBytesK = kPanels * kPanelK, kBytesV = kPanelsV * kPanelK;
  static constexpr int kProducerRegisters = Config::kWgs == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = Config::kWgs == 3 ? 160 : Config::kWgs == 2 ? 232 : 216;
  static constexpr int kEntryRegisters = 65536 / (kThreads * Config::kCtas) / 8 * 8;
  static_assert(kProducerRegisters + Config::kWgs * kConsumerRegisters <= kEntryRegisters * (Config::kWgs + 1),
                "more registers than there are: the kernel would wait for them for ever");
  static_assert(kN % 16 == 0 && Config::kTokens * Config::kPack <= kM, "tile does not split into wgmma shapes");
};

struct HopperSlot {
  HopperTile tile;
  int group;  // negative: no more tiles
};

/// Behind the buffers.
struct HopperShared {
  alignas(16) HopperSlot slots[Config::kSlots];
  u64 tile_full[Config::kSlots], q_full[Config::kSlots], o_full[Config::kSlots], slot_empty[Config::kSlots];
  u64 k_full[Config::kStages], k_empty[Config::kStages], v_full[Config::kStages], v_empty[Config::kStages];
};

static_assert(Config::kSlots * HopperShape::kSlotBytes +
                      Config::kStages * (HopperShape::kBytesK + HopperShape::kBytesV) + sizeof(HopperShared) <=
                  Config::kSmem,
              "the host asks for less shared memory than the kernel lays out");

__device__ inline char* hopper_shared_memory() {
  extern __shared__ __align__(1024) char bdcp_hopper_shared[];
  return bdcp_hopper_shared;
}
__device__ inline u32 q_address(int slot) {
  return smem_address(hopper_shared_memory()) + slot * HopperShape::kSlotBytes;
}
__device__ inline u32 k_address(int stage) {
  return q_address(Config::kSlots) + stage * HopperShape::kBytesK;
}
__device__ inline u32 v_address(int stage) {
  return k_address(Config::kStages) + stage * HopperShape::kBytesV;
}
__device__ inline HopperShared& hopper_shared() {
  return *reinterpret_cast<HopperShared*>(hopper_shared_memory() + Config::kSlots * HopperShape::kSlotBytes +
                                          Config::kStages * (HopperShape::kBytesK + HopperShape::kBytesV));
}
__device__ inline int blocks_of(const HopperTile& tile) {
  return (tile.k_end - tile.k_begin + Config::kN - 1) / Config::kN;
}

/// Buffer and phase of the `count`th use of a ring. Readers wait for the parity; writers for the opposite one, which
/// buffers that were never filled already have.
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

/// The warp that loads: tiles, Q, K and V.
struct HopperProducer {
  using Shape = HopperShape;
  static constexpr int kN = Config::kN;
  const HopperForwardArgs& args;
  int mine;        // this lane's word of the tile
  int head;        // of K and V
  int loaded = 0;  // blocks, of this tile and those before

  __device__ explicit HopperProducer(const HopperForwardArgs& a) : args(a) {}

  /// This CTA's item of a round. Items are sorted, longest first; every other round goes backwards so that no CTA
  /// always gets the longer one.
  __device__ static int item(int round) {
    int ctas = gridDim.x, cta = blockIdx.x;
    asm volatile("" : "+r"(ctas), "+r"(cta));  // formed again, as in copy_across
    return round * ctas + (round & 1 ? ctas - 1 - cta : cta);
  }
  /// Opaque, since what division by it needs would be kept in registers.
  __device__ int groups() const {
    int groups = args.groups;
    asm volatile("" : "+r"(groups));
    return groups;
  }
  /// One word of a tile per lane.
  __device__ int load_tile(int item) const {
    constexpr int kWords = sizeof(HopperTile) / sizeof(int);
    if (item >= args.item_count) return 0;
    int lane = threadIdx.x % kWords;
    asm volatile("" : "+r"(lane), "+r"(item));
    return reinterpret_cast<const int*>(args.tiles + item / groups())[lane];
  }

  __device__ int word(int i) const { return __shfl_sync(0xffffffffu, mine, i); }

  __device__ void run() {
    int next = load_tile(item(0));
#pragma unroll 1
    for (int round = 0;; ++round) {
      mine = next;
      next = load_tile(item(round + 1));  // arrives while this tile is loaded
      const int current = item(round), group = current < args.item_count ? current % groups() : -1;
      head = group * Config::kPack / Config::kRatio;
      int block = group < 0 ? 0 : (word(3) - word(2) + kN - 1) / kN;
      loaded += block;
      bool open = false;
#pragma unroll 1
      do {  // V runs one block behind K
        if (block > 0) load_k(block - 1);
        if (open)
          load_v(block);
        else
          open_slot(round, group, block > 0);
        open = true;
      } while (--block >= 0);
      if (group < 0) return;
    }
  }

  /// Tells the other warps of the tile, and loads Q.
  __device__ void open_slot(int round, int group, bool has_keys) {
    HopperShared& shared = hopper_shared();
    asm volatile("" : "+r"(round), "+r"(group), "+r"(mine));  // as below
    const int buffer = buffer_of<Config::kSlots>(round), lane = threadIdx.x % 32;
    const int q_begin = word(0), q_end = word(1);
    mbarrier_wait(smem_address(&shared.slot_empty[buffer]), parity_of<Config::kSlots>(round) ^ 1);
    HopperSlot& slot = shared.slots[buffer];
    if (lane < 8) reinterpret_cast<int*>(&slot.tile)[lane] = mine;
    if (lane == 8) slot.group = group;
    __syncwarp();
    if (lane != 0) return;
    mbarrier_arrive(smem_address(&shared.tile_full[buffer]));
    if (!has_keys) return;
    const u32 full = smem_address(&shared.q_full[buffer]);
    mbarrier_arrive_expect(full, Shape::kBytesQ);
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
    load<Config::kDim, Shape::kPanels, Shape::kBytesK>(args.k, args.remote_k, args.k_rows, args.remote_k_rows,
                                                       k_address(buffer), &shared.k_full[buffer],
                                                       &shared.k_empty[buffer], block, use);
  }
  __device__ void load_v(int block) {
    asm volatile("" : "+r"(block), "+r"(loaded), "+r"(mine));
    const int use = loaded - 1 - block;
    HopperShared& shared = hopper_shared();
    const int buffer = buffer_of<Config::kStages>(use);
    load<Config::kDimV, Shape::kPanelsV, Shape::kBytesV>(args.v, args.remote_v, args.v_rows, args.remote_v_rows,
                                                         v_address(buffer), &shared.v_full[buffer],
                                                         &shared.v_empty[buffer], block, use);
  }

  /// Key positions of a block; zeros from the tile's k_end on, so that no other document's NaN meets P = 0.
  template <int kDim, int kPanels, int kBytes>
  __device__ void load(const TensorMap& local, const TensorMap& remote, const Tensor& local_rows,
                       const Tensor& remote_rows, u32 target, const u64* full_barrier, const u64* empty_barrier,
                       int block, int use) {
    const u32 full = smem_address(full_barrier);
    const int begin = word(2) + block * kN, count = min(kN, word(3) - begin);
    mbarrier_wait(smem_address(empty_barrier), parity_of<Config::kStages>(use) ^ 1);
    if (begin < args.remote_len && begin + count > args.remote_len) {
      copy_across<kDim, kPanels>(local_rows, remote_rows, target, begin, count);
      if (threadIdx.x % 32 == 0) mbarrier_arrive(full);
    } else if (threadIdx.x % 32 == 0) {
      const bool is_remote = begin < args.remote_len;
      const TensorMap& map = is_remote ? remote : local;
      const int row = is_remote ? begin : begin - args.remote_len;
      mbarrier_arrive_expect(full, kBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        tma_load_4d(target + panel * Shape::kPanelK, map, full, kEvictLast, panel * 64, kN - count, row + count,
                    head);
    }
  }

  /// The block with the last remote and the first local keys, row by row.
  template <int kDim, int kPanels>
  __device__ void copy_across(const Tensor& local, const Tensor& remote, u32 target, int begin, int count) {
    // What does not vary would be computed in advance, for a path that hardly ever runs, and there are no registers
    // to keep it in.
    int place = threadIdx.x % 32;
    asm volatile("" : "+r"(place), "+r"(target), "+r"(begin), "+r"(count));
#pragma unroll 1
    for (; place < kN * 8 * kPanels; place += 32) {
      const int chunk = place % 8, row = place / 8 % kN, panel = place / (8 * kN);
      const int position = begin + row, column = panel * 64 + chunk * 8;
      const bool far = position < args.remote_len;
      const Tensor& from = far ? remote : local;
      const u16* source = static_cast<const u16*>(from.data) +
                          (far ? position : position - args.remote_len) * from.row_stride +
                          head * from.head_stride + column;
      cp_async_16(target + panel * Shape::kPanelK + row * 128 + ((chunk ^ row % 8) << 4), source,
                  row < count && column < kDim);
    }
    cp_async_wait_all();
    fence_async_proxy();
    __syncwarp();
  }
};

/// The thread that stores O.
__device__ inline void hopper_store(const HopperForwardArgs& args) {
  HopperShared& shared = hopper_shared();
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int buffer = buffer_of<Config::kSlots>(round);
    const u32 parity = parity_of<Config::kSlots>(round);
    mbarrier_wait(smem_address(&shared.tile_full[buffer]), parity);
    const HopperSlot& slot = shared.slots[buffer];
    const int group = slot.group, begin = slot.tile.q_begin;
    if (group < 0) return;
    const int count = min(Config::kTokens, slot.tile.q_end - begin);
    mbarrier_wait(smem_address(&shared.o_full[buffer]), parity);
#pragma unroll
    for (int panel = 0; panel < HopperShape::kPanelsV; ++panel)
      tma_store_5d(args.out, q_address(buffer) + panel * HopperShape::kPanelQ, panel * 64, 0,
                   Config::kTokens - count, begin + count, group);
    tma_store_commit();
    tma_store_wait_read();
    mbarrier_arrive(smem_address(&shared.slot_empty[buffer]));
  }
}

/// One warpgroup's rows.
struct HopperConsumer {
  using Shape = HopperShape;
  static constexpr int kN = Config::kN;

  const HopperForwardArgs& args;
  float out[Shape::kColumns / 2];
  u32 p[kN / 4];
  float row_max[2], row_sum[2];
  const int warpgroup;
  int active;    // warpgroups with rows in this tile
  int used = 0;  // blocks of V, of this tile and those before; K is one ahead
  int round = 0;

  __device__ explicit HopperConsumer(const HopperForwardArgs& a)
      : args(a), warpgroup(uniform(static_cast<int>(threadIdx.x) / 128 - 1)) {}

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ int row_of(int half) const {
    return warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() / 4 + half * 8;
  }
  /// The tile is read from shared memory where it is needed: its fields would cost registers of the main loop.
  __device__ int buffer() const { return buffer_of<Config::kSlots>(round); }
  __device__ const HopperSlot& slot() const { return hopper_shared().slots[buffer()]; }
  __device__ const HopperTile& tile() const { return slot().tile; }
  __device__ int token_of(int half) const { return tile().q_begin + row_of(half) / Config::kPack; }
  __device__ bool is_real(int half) const {
    return row_of(half) < Config::kTokens * Config::kPack && token_of(half) < tile().q_end;
  }

  __device__ static void release(const u64* empty) {
    if (lane() == 0) mbarrier_arrive(smem_address(empty));
  }
  __device__ void await(const u64* full, int use) const {
    mbarrier_wait(smem_address(full + buffer_of<Config::kStages>(use)), parity_of<Config::kStages>(use));
  }
  /// Turns of the warpgroups at issuing products; barrier 1 + warpgroup is its turn.
  __device__ void await_turn() const {
    if (active == Config::kWgs && Config::kWgs > 1) named_barrier_sync(1 + warpgroup, 256);
  }
  __device__ void pass_turn() const {
    if (active == Config::kWgs && Config::kWgs > 1)
      named_barrier_arrive(1 + (warpgroup + 1) % Config::kWgs, 256);
  }

  /// S = Q * K, issued.
  __device__ void multiply_qk(float (&s)[kN / 2], int use) const {
    const u64 a = descriptor(q_address(buffer()) + warpgroup * 64 * 128, 0),
              b = descriptor(k_address(buffer_of<Config::kStages>(use)), 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shape::kSteps; ++k)
      Wgmma<kN>::template from_shared<Config::kBf16, 0, 0>(s, a + (k / 4 * Shape::kPanelQ + k % 4 * 32) / 16,
                                                           b + (k / 4 * Shape::kPanelK + k % 4 * 32) / 16,
                                                           k > 0);
    wgmma_commit();
  }
  /// O += P * V, issued.
  __device__ void multiply_pv(int use, bool accumulate) {
    const u64 b = descriptor(v_address(buffer_of<Config::kStages>(use)), Shape::kPanelK);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kN / 16; ++k)
      Wgmma<Shape::kColumns>::template from_registers<Config::kBf16, 1>(out, p + 4 * k, b + k * 2048 / 16,
                                                                        k > 0 || accumulate);
    wgmma_commit();
  }

  /// The key positions that rows r and r + 8 see.
  struct Visible {
    int begin[2], end[2];
  };
  __device__ Visible visible() const {
    Visible keys;
    const HopperTile& tile = this->tile();
    const int rows_at = tile.rows_at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keys.begin[half] = tile.k_begin;
      keys.end[half] = token_of(half) + tile.shift + 1;
      if (rows_at >= 0) {
        const KeyRange none{0, 0};
        const KeyRange range =
            is_real(half) ? args.visible[rows_at + token_of(half) - tile.q_begin] : none;
        keys.begin[half] = range.begin;
        keys.end[half] = range.end;
      }
    }
    return keys;
  }
  /// Positions from keys.end on, `begin` being that of the block.
  __device__ static void mask_end(float (&s)[kN / 2], const int (&end)[2], int begin) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int columns = end[half] - begin - lane() % 4 * 2;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        if (i / 4 * 8 >= columns) s[i] = negative_infinity();
        if (i / 4 * 8 + 1 >= columns) s[i + 1] = negative_infinity();
      }
    }
  }
  __device__ static void mask_begin(float (&s)[kN / 2], const int (&first)[2], int begin) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int columns = first[half] - begin - lane() % 4 * 2;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        if (i / 4 * 8 < columns) s[i] = negative_infinity();
        if (i / 4 * 8 + 1 < columns) s[i + 1] = negative_infinity();
      }
    }
  }

  /// Online softmax: S becomes P (in fp32), the running sums follow; alpha is what O must be scaled by.
  template <bool kFirst, bool kMasked>
  __device__ void softmax(float (&s)[kN / 2], float (&alpha)[2]) {
    const float c = args.scale_log2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = kFirst ? s[2 * half] : fmaxf(row_max[half], s[2 * half]);
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
      most = max_over_quad(most);
      // A row that has seen no key yet keeps -inf; 0 stands in so that -inf - -inf never arises.
      const float shift = kMasked && most == negative_infinity() ? 0.f : most * c;
      if constexpr (!kFirst) {
        alpha[half] = exp2_approx(row_max[half] * c - shift);
        row_sum[half] *= alpha[half];
      } else {
        row_sum[half] = 0.f;
      }
      row_max[half] = most;
#pragma unroll
      for (int i = 2 * half; i < kN / 2; i += 4) {
        s[i] = exp2_approx(s[i] * c - shift);
        s[i + 1] = exp2_approx(s[i + 1] * c - shift);
        row_sum[half] += s[i] + s[i + 1];
      }
    }
  }
  __device__ void pack_p(const float (&s)[kN / 2]) {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) p[i] = pack_16<Config::kBf16>(s[2 * i], s[2 * i + 1]);
  }

  /// P * V of the block before `block` runs beside the softmax of this one.
  template <bool kMasked>
  __device__ void step(int block, bool accumulate) {
    HopperShared& shared = hopper_shared();
    float s[kN / 2], alpha[2];
    await(shared.k_full, used + 1);
    await_turn();
    pin_registers(out);
    pin_registers(p);
    multiply_qk(s, used + 1);
    await(shared.v_full, used);
    multiply_pv(used, accumulate);
    pass_turn();
    wgmma_wait<1>();
    pin_registers(s);
    release(&shared.k_empty[buffer_of<Config::kStages>(used + 1)]);
    if constexpr (kMasked) {
      int end[2];
      for (int half = 0; half < 2; ++half) end[half] = token_of(half) + tile().shift + 1;
      mask_end(s, end, tile().k_begin + block * kN);
    }
    softmax<false, kMasked>(s, alpha);
    wgmma_wait<0>();
    pin_registers(out);
    pin_registers(p);
    release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    ++used;
    pack_p(s);
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] *= alpha[i / 2 % 2];
  }

  /// The tile's first block, the last of its keys, once its S is there.
  __device__ void first_softmax(float (&s)[kN / 2], const Visible& keys) {
    release(&hopper_shared().k_empty[buffer_of<Config::kStages>(used)]);
    const int blocks = blocks_of(tile());
    if (blocks > tile().unmasked) {
      const int begin = tile().k_begin + (blocks - 1) * kN;
      mask_end(s, keys.end, begin);
      if (tile().rows_at >= 0) mask_begin(s, keys.begin, begin);
    }
    float alpha[2];
    softmax<true, true>(s, alpha);
  }
  __device__ void open_tile() {
    float s[kN / 2];
    const Visible keys = visible();  // arrives while Q does
    mbarrier_wait(smem_address(&hopper_shared().q_full[buffer()]), parity_of<Config::kSlots>(round));
    await(hopper_shared().k_full, used);
    multiply_qk(s, used);
    wgmma_wait<0>();
    pin_registers(s);
    first_softmax(s, keys);
    pack_p(s);
  }

  /// The tile's blocks after the first, right to left, but for the last product. Whether there were any.
  __device__ bool walk() {
    const int unmasked = uniform(tile().unmasked);
    int block = uniform(blocks_of(tile())) - 2;
    bool accumulate = false;
#pragma unroll 1
    for (; block >= unmasked; --block, accumulate = true) step<true>(block, accumulate);
#pragma unroll 1
    for (; block >= 0; --block, accumulate = true) step<false>(block, accumulate);
    return accumulate;
  }

  /// The last product of the tile alone.
  __device__ void close_tile(bool accumulate) {
    HopperShared& shared = hopper_shared();
    await(shared.v_full, used);
    pin_registers(out);
    pin_registers(p);
    multiply_pv(used, accumulate);
    wgmma_wait<0>();
    pin_registers(out);
    pin_registers(p);
    if (tile().rows_at >= 0) keep_apart();
    release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    finish();
  }
  /// Keeps step with the other warpgroups in a tile where this one has no rows.
  __device__ void skip(int blocks) {
    HopperShared& shared = hopper_shared();
#pragma unroll 1
    for (int block = 0; block < blocks; ++block, ++used) {
      await(shared.k_full, used);
      release(&shared.k_empty[buffer_of<Config::kStages>(used)]);
      await(shared.v_full, used);
      release(&shared.v_empty[buffer_of<Config::kStages>(used)]);
    }
  }

  /// Documents that share a tile also share P * V: 0 * NaN carries one document's NaN into another. A clean
  /// result proves that nothing was carried; otherwise each document's product is done again with the others'
  /// rows of V as zeros, through this warpgroup's rows of Q, which nobody needs any more.
  __device__ void keep_apart() {
    bool bad = false;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 2; ++i) bad |= !(fabsf(out[i]) <= 3.4028234e38f);
    if (!named_barrier_any(4 + warpgroup, 128, bad)) return;
    const HopperTile tile = this->tile();
    const KeyRange* visible = args.visible + tile.rows_at - tile.q_begin;
    const int last = min(tile.q_end - 1, tile.q_begin + (warpgroup * 64 + 63) / Config::kPack);
    int token = tile.q_begin + warpgroup * 64 / Config::kPack;
#pragma unroll 1
    while (token <= last) {
      const int begin = token;
      KeyRange keys = visible[token];
      for (; token <= last && visible[token].begin == keys.begin; ++token) keys.end = visible[token].end;
      keys.begin -= tile.k_begin;
      keys.end -= tile.k_begin;
      redo_panels<0>(keys, begin, token);
    }
  }
  template <int kPanel>
  __device__ void redo_panels(KeyRange keys, int begin, int end) {
    if constexpr (kPanel < Shape::kPanelsV) {
      constexpr int kWide = Shape::kColumns - kPanel * 64 < 64 ? Shape::kColumns - kPanel * 64 : 64;
      const int thread = threadIdx.x % 128;
      const u32 scratch = q_address(buffer()) + warpgroup * 64 * 128;
      const u32 panel = v_address(buffer_of<Config::kStages>(used)) + kPanel * Shape::kPanelK;
      float part[kWide / 2];
#pragma unroll
      for (int chunk = 0; chunk < kN; chunk += 64) {
#pragma unroll 1
        for (int i = thread; i < min(64, kN - chunk) * 8; i += 128) {
          const int key = chunk + i / 8;
          u32 word[4] = {0, 0, 0, 0};
          if (key >= keys.begin && key < keys.end)
            asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                         : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                         : "r"(panel + key * 128 + i % 8 * 16)
                         : "memory");
          asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(scratch + i * 16), "r"(word[0]),
                       "r"(word[1]), "r"(word[2]), "r"(word[3])
                       : "memory");
        }
        fence_async_proxy();
        named_barrier_sync(4 + warpgroup, 128);
        pin_registers(p);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < (kN - chunk < 64 ? kN - chunk : 64) / 16; ++k)
          Wgmma<kWide>::template from_registers<Config::kBf16, 1>(part, p + chunk / 4 + 4 * k,
                                                                  descriptor(scratch, 0) + k * 2048 / 16,
                                                                  chunk + k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        pin_registers(part);
        named_barrier_sync(4 + warpgroup, 128);
      }
#pragma unroll
      for (int i = 0; i < kWide / 2; ++i) {
        const int token = token_of(i / 2 % 2);
        if (token >= begin && token < end) out[kPanel * 32 + i] = part[i];
      }
      redo_panels<kPanel + 1>(keys, begin, end);
    }
  }

  /// O into Q's rows, LSE to memory.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over_quad(row_sum[half]);
      const float inverse = 1.f / sum;
      if (args.lse != nullptr && lane() % 4 == 0 && is_real(half)) {
        const float lse = sum == 0.f
                              ? negative_infinity()
                              : (row_max[half] * args.scale_log2 + __log2f(sum)) * 0.6931471805599453f;
        args.lse[(slot().group * Config::kPack + row_of(half) % Config::kPack) * args.lse_stride +
                 token_of(half)] = lse;
      }
#pragma unroll
      for (int i = 2 * half; i < Shape::kColumns / 2; i += 4) {
        // A row without keys is exact zeros, whatever V holds.
        out[i] = sum == 0.f ? 0.f : out[i] * inverse;
        out[i + 1] = sum == 0.f ? 0.f : out[i + 1] * inverse;
      }
    }
    named_barrier_sync(4 + warpgroup, 128);  // every warp is done with these rows of Q
    const int row = warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane() % 16;
    const u32 base = q_address(buffer()) + row * 128;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 16; ++i) {
      const int chunk = i % 4 * 2 + lane() / 16;
      stmatrix_x4(base + i / 4 * Shape::kPanelQ + ((chunk ^ row % 8) << 4),
                  pack_16<Config::kBf16>(out[8 * i], out[8 * i + 1]),
                  pack_16<Config::kBf16>(out[8 * i + 2], out[8 * i + 3]),
                  pack_16<Config::kBf16>(out[8 * i + 4], out[8 * i + 5]),
                  pack_16<Config::kBf16>(out[8 * i + 6], out[8 * i + 7]));
    }
    fence_async_proxy();
    __syncwarp();
    release(&hopper_shared().o_full[buffer()]);
  }

  /// Waits until the producer names a tile; false after the last one.
  __device__ bool await_tile() const {
    mbarrier_wait(smem_address(&hopper_shared().tile_full[buffer()]), parity_of<Config::kSlots>(round));
    return uniform(slot().group) >= 0;
  }
  __device__ void run() {
    if (Config::kWgs > 1 && warpgroup == Config::kWgs - 1) named_barrier_arrive(1, 256);
#pragma unroll 1
    for (; await_tile(); ++round) {
      const int blocks = uniform(blocks_of(tile()));
      active = uniform(min(Config::kWgs, ((tile().q_end - tile().q_begin) * Config::kPack + 63) / 64));
      if (warpgroup < active && blocks > 0) {
        open_tile();
        close_tile(walk());
        ++used;
      } else if (warpgroup < active) {
#pragma unroll
        for (int i = 0; i < Shape::kColumns / 2; ++i) out[i] = 0.f;
        row_sum[0] = row_sum[1] = 0.f;
        finish();
      } else {
        skip(blocks);
        release(&hopper_shared().o_full[buffer()]);
      }
    }
  }
};

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::HopperShape::kThreads, bdcp::kernel::Config::kCtas)
    hopper_forward(const __grid_constant__ bdcp::kernel::HopperForwardArgs args) {
  using namespace bdcp::kernel;
  HopperShared& shared = hopper_shared();
  if (threadIdx.x == 0) {
    const int consumers = 4 * Config::kWgs;  // warps
    for (int i = 0; i < Config::kSlots; ++i) {
      mbarrier_init(smem_address(&shared.tile_full[i]), 1);
      mbarrier_init(smem_address(&shared.q_full[i]), 1);
      mbarrier_init(smem_address(&shared.o_full[i]), consumers);
      mbarrier_init(smem_address(&shared.slot_empty[i]), 1);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      mbarrier_init(smem_address(&shared.k_full[i]), 1);
      mbarrier_init(smem_address(&shared.v_full[i]), 1);
      mbarrier_init(smem_address(&shared.k_empty[i]), consumers);
      mbarrier_init(smem_address(&shared.v_empty[i]), consumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    for (const TensorMap* map : {&args.q, &args.k, &args.v, &args.out}) prefetch_map(*map);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    fewer_registers<HopperShape::kProducerRegisters>();
    if (threadIdx.x < 32)
      HopperProducer(args).run();
    else if (threadIdx.x == 32)
      hopper_store(args);
  } else {
    more_registers<HopperShape::kConsumerRegisters>();
    HopperConsumer(args).run();
  }
}
