#include "attention/hopper_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "attention/call_checks.h"
#include "attention/head_bands.h"
#include "attention/hopper_maps.h"
#include "attention/hopper_work.h"
#include "attention/kernel_tensor.h"
#include "attention/persistent_grid.h"
#include "base/check.h"
#include "plan/document_groups.h"

namespace bdcp::attention {
namespace {

using kernel::HopperForwardArgs;
using kernel::HopperTile;

/// What an SM gets through in some 20 us, in which a transfer's kernel comes from its queue to the SMs.
constexpr std::int64_t kOpeningOperations = 90'000'000;

constexpr int kBorderRows = 8;  // see kernel::HopperBorder

}  // namespace

HopperForward::HopperForward(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout,
                             const Options& options, const PrepareContext& context,
                             const PreparedKernel& kernel)
    : shape_(shape),
      remote_len_(plan.remote_len),
      device_(context.device),
      config_(hopper_forward_config(shape, layout)),
      kernel_(kernel) {
  const std::int64_t key_bytes =
      (shape.head_dim + shape.dim_v()) * static_cast<std::int64_t>(size_of(shape.dtype)) * shape.heads_kv;
  const device::DeviceFacts& facts = device_->facts();
  const HopperWork work = make_hopper_work(plan, config_.tokens(), config_.keys, !options.batch_invariant,
                                           plan::rows_in_cache(facts.l2_bytes, key_bytes));
  const GraphRoom& room = context.room;
  const std::size_t room_for_tiles = room.pieces(plan.rows, config_.tokens());
  const std::size_t most = std::max(work.tiles.size(), room_for_tiles);
  require(most * groups() < (std::size_t{1} << 30), ErrorCode::unsupported, [&] {
    return fmt::format("{} tiles of {} head groups; the kernel counts up to 2^30 items", most, groups());
  });
  tiles_ = DeviceList<HopperTile>(*context.tables, work.tiles, work.local_count, room_for_tiles);
  visible_ =
      DeviceList<kernel::KeyRange>(*context.tables, work.visible, work.visible.size(), room.each(plan.rows));

  // Documents that exceed the cache by little are up to 1 % slower a few heads at a time, by half 2 % faster.
  const auto cache_bytes = static_cast<std::int64_t>(facts.l2_bytes) * 3 / 2;
  const auto groups_of_head = static_cast<int>(groups()) / shape.heads_kv;
  const auto load = [&](const HopperTile& tile) {
    return TileLoad{(tile.k_end - tile.k_begin) * key_bytes, cost(tile)};
  };
  for (const Part part : {Part::local, Part::remote})
    heads_at_once_[static_cast<int>(part)] =
        groups_of_head * heads_at_once(part_of(work.tiles, work.local_count, part), shape, context,
                                       groups_of_head, cache_bytes, load);
  const std::int64_t of_pair = 2 * std::int64_t{shape.heads_q} * (shape.head_dim + shape.dim_v());
  opening_ = opening_tiles(part_of(work.tiles, work.local_count, Part::local),
                           kOpeningOperations / of_pair * facts.sm_count);
}

bool HopperForward::takes(const ForwardCall& call) {
  for (const ConstTensorView& view :
       {call.q, call.k, call.v, call.remote_k, call.remote_v, ConstTensorView(call.out)})
    if (!fits_tma(view)) return false;
  return true;
}

void HopperForward::launch(const ForwardCall& call, Part part, Stream stream, int* ticket) const {
  HopperForwardArgs args{};
  const int tokens = config_.tokens(), keys = config_.keys;
  encode_packed(*device_, call.q, tokens, config_.pack, args.q);
  encode_packed(*device_, call.out, tokens, config_.pack, args.out);
  encode_keys(*device_, call.k, call.remote_k, keys, args.q, args.k, args.remote_k);
  encode_keys(*device_, call.v, call.remote_v, keys, args.q, args.v, args.remote_v);
  if (part == Part::remote) {
    encode_keys(*device_, call.k, call.remote_k, kBorderRows, args.q, args.k_border.local,
                args.k_border.remote);
    encode_keys(*device_, call.v, call.remote_v, kBorderRows, args.q, args.v_border.local,
                args.v_border.remote);
  }
  args.k_rows = to_kernel(call.k);
  args.v_rows = to_kernel(call.v);
  args.remote_k_rows = to_kernel(call.remote_k);
  args.remote_v_rows = to_kernel(call.remote_v);
  args.lse = call.lse.data;
  args.lse_stride = call.lse.head_stride;
  args.visible = visible_.data();
  args.tile_count = tiles_.count();
  args.groups = static_cast<int>(groups());
  args.remote_len = static_cast<int>(remote_len_);
  args.ticket = ticket;
  args.scale_log2 = static_cast<float>(shape_.softmax_scale() * std::numbers::log2e);

  const HopperTile* tiles = tiles_.part(part);
  std::size_t count = tiles_.size(part);
  const int few = heads_at_once_[static_cast<int>(part)];
  int sm_margin = call.sm_margin;
  if (call.margin_at_start && sm_margin > 0 && part == Part::local && opening_ < count) {
    count -= opening_;
    launch_tiles(args, tiles + count, opening_, args.groups, sm_margin, stream);
    sm_margin = 0;
  }
  launch_tiles(args, tiles, count, few, sm_margin, stream);
}

void HopperForward::launch_tiles(HopperForwardArgs& args, const HopperTile* tiles, std::size_t count,
                                 int heads_at_once, int sm_margin, Stream stream) const {
  const std::size_t items = count * groups();
  args.tiles = tiles;
  args.item_count = static_cast<int>(items);
  args.bands = head_bands(count, heads_at_once, args.groups);
  attention::launch(*device_, kernel_,
                    {static_cast<unsigned>(persistent_ctas(items, device_->facts(), sm_margin)), 1, 1},
                    static_cast<unsigned>(config_.threads()), &args, stream);
}

}  // namespace bdcp::attention
