#include "attention/hopper_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "attention/call_checks.h"
#include "attention/head_bands.h"
#include "attention/hopper_maps.h"
#include "attention/hopper_stages.h"
#include "attention/hopper_work.h"
#include "attention/kernel_tensor.h"
#include "attention/persistent_grid.h"
#include "base/check.h"
#include "plan/document_groups.h"

namespace bdcp::attention {
namespace {

using kernel::HopperForwardArgs;
using kernel::HopperTile;

/// What an SM gets through in a us.
constexpr std::int64_t kOperationsPerUs = 4'500'000;
/// In which a transfer's kernel comes from its queue to the SMs.
constexpr std::int64_t kOpeningUs = 20;

/// See kernel::HopperForwardArgs.
int border_shift(const plan::RankPlan& plan, int keys) {
  if (plan.remote_segments() == 0) return 3;
  const std::int64_t border = (plan.remote_len - plan.segments[0].k_begin) % keys;
  int shift = 3;
  while (shift < 5 && border % (2 << shift) == 0 && keys % (2 << shift) == 0) ++shift;
  return shift;
}

std::int64_t bytes_of_key(const CallShape& shape) {
  return (shape.head_dim + shape.dim_v()) * static_cast<std::int64_t>(size_of(shape.dtype)) * shape.heads_kv;
}

/// Pairs of rows and keys, all heads, that the GPU gets through in `us`.
std::int64_t pairs_in(const CallShape& shape, const PrepareContext& context, std::int64_t us) {
  const std::int64_t of_pair = 2 * std::int64_t{shape.heads_q} * (shape.head_dim + shape.dim_v());
  return kOperationsPerUs * us / of_pair * context.device->facts().sm_count;
}

/// Pairs that are to be found for the time of the transfer, beside those of the local documents.
std::int64_t pairs_to_stage(const CallShape& shape, const plan::RankPlan& plan, const PrepareContext& context) {
  const std::int64_t us =
      plan.remote_len * bytes_of_key(shape) / std::max<std::int64_t>(context.arrival_rate, 1);
  std::int64_t pairs = pairs_in(shape, context, us);
  for (std::size_t i = static_cast<std::size_t>(plan.remote_segments()); i < plan.segments.size(); ++i)
    pairs -= std::int64_t{plan.segments[i].rows()} * plan.segments[i].keys() / 2;
  return pairs;
}

}  // namespace

HopperForwardWork make_forward_work(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout,
                                    const Options& options, const PrepareContext& context) {
  const HopperForwardConfig config = hopper_forward_config(shape, layout);
  const std::int64_t key_bytes = bytes_of_key(shape);
  HopperForwardWork made;
  made.work = make_hopper_work(plan, config.tokens(), config.keys, !options.batch_invariant,
                               plan::rows_in_cache(context.device->facts().l2_bytes, key_bytes));
  if (plan.remote_len == 0 || layout != HopperLayout::long_docs) return made;
  const std::int64_t pairs = pairs_to_stage(shape, plan, context);
  if (pairs <= pairs_in(shape, context, kOpeningUs)) return made;
  // As much memory as the remote keys take, at most.
  const std::size_t state =
      static_cast<std::size_t>(shape.heads_q / config.pack) * hopper_state_bytes(shape, config);
  made.states = stage_tiles(made.work, plan.remote_len, config.keys, pairs,
                            static_cast<std::size_t>(plan.remote_len * key_bytes) / state);
  return made;
}

HopperForward::HopperForward(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout,
                             HopperForwardWork made, const PrepareContext& context,
                             const PreparedKernel& kernel)
    : shape_(shape),
      remote_len_(plan.remote_len),
      device_(context.device),
      config_(hopper_forward_config(shape, layout)),
      border_shift_(border_shift(plan, config_.keys)),
      kernel_(kernel),
      states_(made.states) {
  const HopperWork& work = made.work;
  const std::int64_t key_bytes = bytes_of_key(shape);
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
  const auto cache_bytes = static_cast<std::int64_t>(device_->facts().l2_bytes) * 3 / 2;
  const auto groups_of_head = static_cast<int>(groups()) / shape.heads_kv;
  const auto load = [&](const HopperTile& tile) {
    return TileLoad{(tile.k_end - tile.k_begin) * key_bytes, cost(tile)};
  };
  for (const Part part : {Part::local, Part::remote})
    heads_at_once_[static_cast<int>(part)] =
        groups_of_head * heads_at_once(part_of(work.tiles, work.local_count, part), shape, context,
                                       groups_of_head, cache_bytes, load);
  // What is there for the time of the transfer leaves it the SMs throughout.
  opening_ = states_ > 0 ? work.local_count
                         : opening_tiles(part_of(work.tiles, work.local_count, Part::local),
                                         pairs_in(shape, context, kOpeningUs));
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
    encode_keys(*device_, call.k, call.remote_k, 1 << border_shift_, args.q, args.k_border.local,
                args.k_border.remote);
    encode_keys(*device_, call.v, call.remote_v, 1 << border_shift_, args.q, args.v_border.local,
                args.v_border.remote);
  }
  args.border_shift = border_shift_;
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
  args.states = static_cast<float*>(call.workspace.data);
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
