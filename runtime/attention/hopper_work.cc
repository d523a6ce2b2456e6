#include "attention/hopper_work.h"

#include <algorithm>

#include "plan/tile_schedule.h"

namespace bdcp::attention {
namespace {

/// Appends what each row of the tile sees.
void append_visible(std::vector<kernel::KeyRange>& visible, const plan::RankPlan& plan,
                    const plan::Tile& tile) {
  for (int s = tile.seg_begin; s < tile.seg_end; ++s) {
    const plan::Segment& segment = plan.segments[static_cast<std::size_t>(s)];
    for (int row = segment.q_begin; row < segment.q_end; ++row) {
      const int end = segment.k_end - (segment.q_end - 1 - row);
      visible.push_back(end > segment.k_begin ? kernel::KeyRange{segment.k_begin, end}
                                              : kernel::KeyRange{0, 0});
    }
  }
}

}  // namespace

std::size_t opening_tiles(std::span<const kernel::HopperTile> tiles, std::int64_t pairs) {
  std::int64_t opening = 0, all = 0;
  std::size_t count = 0;
  for (std::size_t i = tiles.size(); i-- > 0;) {
    if (opening < pairs) {
      opening += cost(tiles[i]);
      ++count;
    }
    all += cost(tiles[i]);
    if (opening >= pairs && all >= 4 * opening) return count;  // the longest need not be looked at
  }
  return tiles.size();
}

HopperWork make_hopper_work(const plan::RankPlan& plan, int tokens, int keys, bool share,
                            std::int64_t group_rows) {
  const plan::TileSchedule schedule = plan::make_tile_schedule(
      plan,
      {.rows = tokens, .keys = keys, .share_short = share, .shared_keys = keys, .group_rows = group_rows});
  HopperWork work;
  work.local_count = static_cast<std::size_t>(schedule.local_tiles);
  work.tiles.reserve(schedule.tiles.size());
  for (const plan::Tile& t : schedule.tiles) {
    kernel::HopperTile& tile = work.tiles.emplace_back();  // filled in place: a copy of fresh stores stalls
    tile.q_begin = t.q_begin;
    tile.q_end = t.q_end;
    tile.k_begin = t.k_begin;
    tile.k_end = t.k_end;
    tile.rows_at = -1;
    if (t.seg_end - t.seg_begin > 1) {
      tile.rows_at = static_cast<int>(work.visible.size());
      append_visible(work.visible, plan, t);
    } else if (t.seg_end - t.seg_begin == 1) {
      const plan::Segment& segment = plan.segments[static_cast<std::size_t>(t.seg_begin)];
      tile.unmasked = (t.full_end - t.full_begin) / keys;
      tile.shift = segment.k_end - segment.q_end;
    }
  }
  return work;
}

}  // namespace bdcp::attention
