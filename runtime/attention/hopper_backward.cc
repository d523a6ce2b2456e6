#include "attention/hopper_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "attention/call_checks.h"
#include "attention/head_bands.h"
#include "attention/hopper_backward_work.h"
#include "attention/hopper_maps.h"
#include "attention/kernel_tensor.h"
#include "attention/persistent_grid.h"
#include "base/check.h"
#include "plan/document_groups.h"

namespace bdcp::attention {
namespace {

constexpr unsigned kRowThreads = 256;
constexpr int kRowShares = 8;  // CTAs per chunk of rows, each with its share of the heads
/// Documents of so many times the L2 cache's size take fewer heads at a time (figures: tools/results/NOTES.md).
constexpr std::int64_t kMissesThatTell = 3;
/// Tiles with the same rows begin so many apart: adds of many SMs to the same sums at a time wait for each
/// other, and rows further apart than that leave the L2 cache before the next tile comes
/// (tools/results/NOTES.md).
constexpr int kStaggerRows = 256;
constexpr std::size_t kPartsPerCta = 2;  // one that is left while another is added up

}  // namespace

bool has_whole_rows_only(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                         const GraphRoom& room) {
  const HopperBackwardConfig config = hopper_backward_config(shape, /*whole=*/true);
  return !config.sums && !room.wanted() && !options.batch_invariant &&
         std::all_of(plan.segments.begin(), plan.segments.end(),
                     [&](const plan::Segment& s) { return s.keys() <= config.keys; });
}

std::vector<jit::KernelSpec> hopper_backward_specs(const CallShape& shape, bool whole, const std::string& arch,
                                                   const Options& options) {
  return {hopper_backward_rows_spec("hopper_backward_delta", shape, arch),
          hopper_backward_spec(shape, whole, arch, options),
          hopper_backward_rows_spec("hopper_backward_round", shape, arch)};
}

HopperBackward::HopperBackward(const CallShape& shape, const plan::RankPlan& plan, bool whole,
                               const Options& options, const PrepareContext& context,
                               std::span<const PreparedKernel> kernels)
    : shape_(shape),
      plan_(plan),
      payload_f32_(options.payload_f32),
      device_(context.device),
      config_(hopper_backward_config(shape, whole)),
      kernels_(kernels) {
  // What tiles of keys read and add to: Q, dO and the sums of dQ.
  const std::int64_t element = static_cast<std::int64_t>(size_of(shape.dtype)),
                     row_bytes =
                         shape.heads_q * ((shape.head_dim + shape.dim_v()) * element + shape.head_dim * 4);
  const GraphRoom& room = context.room;
  const HopperBackwardWork work =
      make_hopper_backward_work(plan, {.rows = config_.rows,
                                       .keys = config_.keys,
                                       .share = !options.batch_invariant,
                                       .group_rows = plan::rows_in_cache(device_->facts().l2_bytes, row_bytes),
                                       .split = splits(plan, options, room),
                                       .whole_chunks = config_.sums,
                                       .stagger = stagger(plan, options, room)});
  const std::size_t room_for_tiles = room.pieces(plan.key_rows, config_.keys);
  const std::size_t most = std::max(work.tiles.items.size(), room_for_tiles);
  require(most * static_cast<std::size_t>(shape.heads_q) < (std::size_t{1} << 30), ErrorCode::unsupported, [&] {
    return fmt::format("{} key tiles of {} heads; the kernel counts up to 2^30 items", most, shape.heads_q);
  });
  for (const Part part : {Part::local, Part::remote})
    heads_at_once_[static_cast<int>(part)] =
        choose_heads_at_once(work, part, row_bytes / shape.heads_q * shape.heads_kv, context);
  split_local_ = work.split_local;
  split_remote_ = work.split_remote;
  const auto ratio = static_cast<std::size_t>(shape.heads_q / shape.heads_kv);
  ring_ = std::min(
      std::max(split_local_, split_remote_) * static_cast<std::size_t>(shape.heads_kv),
      std::max(kPartsPerCta * static_cast<std::size_t>(device_->facts().sm_count) / ratio, std::size_t{1}));
  sum_blocks_ = work.sum_blocks;
  // Only documents of more keys than a tile have sums.
  if (room.wanted()) sum_blocks_ = plan.key_rows > config_.keys ? room.pieces(plan.rows, config_.rows) : 0;
  workspace_ = lay_out();
  device::Tables& tables = *context.tables;
  tiles_ = DeviceList<kernel::HopperKeyTile>(tables, work.tiles.items, work.tiles.local_count, room_for_tiles);
  key_rows_ =
      DeviceList<kernel::HopperKeyRows>(tables, work.key_rows, work.key_rows.size(), room.each(plan.key_rows));
  chunks_ = DeviceList<kernel::HopperRows>(tables, work.chunks.items, work.chunks.local_count,
                                           room.pieces(plan.rows, config_.rows, 2));
  segments_ =
      DeviceList<kernel::Segment>(tables, to_kernel(work.segments), work.segments.size(), room.segments());
}

HopperBackward::Workspace HopperBackward::lay_out() const {
  const auto heads = static_cast<std::size_t>(shape_.heads_q),
             heads_kv = static_cast<std::size_t>(shape_.heads_kv);
  const std::size_t values = padded(static_cast<std::size_t>(plan_.rows) * heads * sizeof(float));
  Workspace at;
  at.delta = values;
  at.sums = at.delta + values;
  at.counters = at.sums + padded(sum_blocks_ * heads * hopper_dq_sums(shape_, config_) * sizeof(float));
  at.part_counts = at.counters + padded((sum_blocks_ * heads * 2 + 1) * sizeof(int));
  at.parts = at.part_counts + padded(std::max(split_local_, split_remote_) * heads_kv * sizeof(int));
  at.end = at.parts + padded(ring_ * (heads / heads_kv) * hopper_part_floats(shape_, config_) * sizeof(float));
  return at;
}

int HopperBackward::choose_heads_at_once(const HopperBackwardWork& work, Part part, std::int64_t row_bytes,
                                         const PrepareContext& context) const {
  if ((part == Part::local ? work.split_local : work.split_remote) > 0) return shape_.heads_kv;
  const auto load = [&](const kernel::HopperKeyTile& tile) {
    return TileLoad{(tile.q_end - tile.q_begin) * row_bytes, cost(tile)};
  };
  return heads_at_once(part_of(work.tiles.items, work.tiles.local_count, part), shape_, context, 1,
                       kMissesThatTell * static_cast<std::int64_t>(device_->facts().l2_bytes), load);
}

std::size_t HopperBackward::items(Part part) const {
  return split_tiles(part) * static_cast<std::size_t>(shape_.heads_q) +
         (tiles_.size(part) - split_tiles(part)) * static_cast<std::size_t>(shape_.heads_kv);
}

bool HopperBackward::splits(const plan::RankPlan& plan, const Options& options, const GraphRoom& room) const {
  // A captured launch has its items counted on the device, tile by tile. And where batch invariance is asked
  // for, the bits of a document's gradients may not depend on how many tiles others have.
  if (!config_.split || room.wanted() || options.batch_invariant) return false;
  // Leaving and adding up dK and dV costs more than it wins, except where an item per K/V head is too few for
  // every SM to have a round of work (figures: tools/results/NOTES.md).
  std::int64_t tiles = 0;
  for (const plan::Segment& s : plan.segments)
    tiles += (std::int64_t{s.keys()} + config_.keys - 1) / config_.keys;
  return tiles * shape_.heads_kv < 4 * std::int64_t{device_->facts().sm_count};
}

bool HopperBackward::takes(const BackwardCall& call) const {
  for (const ConstTensorView& view : {call.q, call.k, call.v, call.remote_k, call.remote_v, call.dout})
    if (!fits_tma(view)) return false;
  for (const ConstTensorView& view :
       {call.out, ConstTensorView(call.dq), ConstTensorView(call.dk), ConstTensorView(call.dv)})
    if (!aligned_16(view)) return false;
  if (!config_.sums && !fits_tma(call.out)) return false;
  return payload_f32_ || (aligned_16(call.remote_dk) && aligned_16(call.remote_dv));
}

int HopperBackward::stagger(const plan::RankPlan& plan, const Options& options, const GraphRoom& room) const {
  // Tiles that add in turn wait for those before them, and an item of one q head has nowhere to go on.
  return options.deterministic || splits(plan, options, room) ? 0 : kStaggerRows / config_.rows;
}

kernel::HopperRowsArgs HopperBackward::rows_args(const BackwardCall& call, Part part) const {
  auto* at = static_cast<std::byte*>(call.workspace.data);
  kernel::HopperRowsArgs args{};
  args.out = to_kernel(call.out);
  args.dout = to_kernel(call.dout);
  args.dq = to_kernel(call.dq);
  args.lse = call.lse.data;
  args.lse_stride = call.lse.head_stride;
  args.lse_log2 = reinterpret_cast<float*>(at);
  args.delta = reinterpret_cast<float*>(at + workspace_.delta);
  args.dq_sum = reinterpret_cast<float*>(at + workspace_.sums);
  args.ticket = reinterpret_cast<int*>(at + workspace_.counters);
  args.added = args.ticket + 1;
  args.part_counts = reinterpret_cast<int*>(at + workspace_.part_counts);
  args.part_groups = static_cast<std::int64_t>(split_tiles(part)) * shape_.heads_kv;
  args.rows = plan_.rows;
  args.chunks = chunks_.part(part);
  args.count = chunks_.count();
  args.chunk_count = static_cast<int>(chunks_.size(part));
  args.heads_q = shape_.heads_q;
  args.scale = static_cast<float>(shape_.softmax_scale());
  return args;
}

void HopperBackward::launch(const BackwardCall& call, Part part, Stream stream) const {
  check_workspace(call.workspace, workspace());
  const std::size_t items = this->items(part);
  kernel::HopperRowsArgs rows = rows_args(call, part);
  const auto shares = static_cast<std::size_t>(std::min(kRowShares, shape_.heads_q));
  const auto chunks = static_cast<std::size_t>(rows.chunk_count);
  // Also without rows: it resets the counter of items.
  if (items > 0 || chunks > 0)
    launch_one(kDelta, std::max<std::size_t>(chunks, 1), shares, kRowThreads, &rows, stream);
  if (items > 0) {
    kernel::HopperBackwardArgs args{};
    // There are keys, or there would be no items.
    const kernel::TensorMap none{};
    encode_keys(*device_, call.k, call.remote_k, config_.keys, none, args.k, args.remote_k);
    encode_keys(*device_, call.v, call.remote_v, config_.keys, none, args.v, args.remote_v);
    encode_rows(*device_, call.q, config_.rows, args.k, args.q);
    encode_rows(*device_, call.dout, config_.rows, args.k, args.dout);
    args.k_rows = to_kernel(call.k);
    args.v_rows = to_kernel(call.v);
    args.remote_k_rows = to_kernel(call.remote_k);
    args.remote_v_rows = to_kernel(call.remote_v);
    args.dq = rows.dq;
    args.dk = {to_kernel(call.dk), to_kernel(call.shared_dk), to_kernel(call.remote_dk)};
    args.dv = {to_kernel(call.dv), to_kernel(call.shared_dv), to_kernel(call.remote_dv)};
    args.lse = rows.lse_log2;
    args.delta = rows.delta;
    if (!config_.sums) {
      const int rows_at_once = hopper_delta_rows(shape_, config_);
      encode_rows(*device_, call.out, rows_at_once, args.k, args.out_rows);
      encode_rows(*device_, call.dout, rows_at_once, args.k, args.dout_rows);
      args.natural_lse = rows.lse;
      args.natural_lse_stride = rows.lse_stride;
    }
    args.dq_sum = rows.dq_sum;
    args.added = rows.added;
    args.ticket = rows.ticket;
    args.rows = plan_.rows;
    args.tiles = tiles_.part(part);
    args.key_rows = key_rows_.data();
    args.segments = segments_.data();
    args.parts = reinterpret_cast<float*>(static_cast<std::byte*>(call.workspace.data) + workspace_.parts);
    args.part_counts = rows.part_counts;
    args.ring = static_cast<int>(ring_);
    args.split_tiles = static_cast<int>(split_tiles(part));
    args.tile_count = tiles_.count();
    args.item_count = static_cast<int>(items);
    args.bands = head_bands(tiles_.size(part), heads_at_once_[static_cast<int>(part)], shape_.heads_kv);
    args.heads_q = shape_.heads_q;
    args.heads_kv = shape_.heads_kv;
    args.remote_len = static_cast<int>(plan_.remote_len);
    args.shared_begin = static_cast<int>(plan_.shared_begin);
    args.scale = rows.scale;
    args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);
    launch_one(kMain, persistent_ctas(items, device_->facts(), call.sm_margin), 1,
               static_cast<unsigned>(config_.threads()), &args, stream);
  }
  if (sum_blocks_ > 0 && chunks > 0) launch_one(kRound, chunks, shares, kRowThreads, &rows, stream);
}

void HopperBackward::launch_one(Kernel which, std::size_t x, std::size_t y, unsigned threads, void* args,
                                Stream stream) const {
  // The others follow kDelta, and wait for it themselves.
  attention::launch(*device_, kernels_[which], {static_cast<unsigned>(x), static_cast<unsigned>(y), 1}, threads,
                    args, stream, which != kDelta);
}

}  // namespace bdcp::attention
