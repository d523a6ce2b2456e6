// The work list of the Hopper forward. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel_templates/hopper_args.h"
#include "plan/plan.h"

namespace bdcp::attention {

struct HopperWork {
  std::vector<kernel::HopperTile>
      tiles;  ///< local ones, then remote ones; as plan::make_tile_schedule orders them
  std::size_t local_count = 0;
  std::vector<kernel::KeyRange> visible;  ///< of the rows of shared tiles
};

/// `group_rows`: see plan::TileOptions. Tiles of `tokens` rows and blocks of `keys`; whole segments share a
/// tile if `share` and their keys fit one block.
HopperWork make_hopper_work(const plan::RankPlan& plan, int tokens, int keys, bool share,
                            std::int64_t group_rows = 0);

/// Pairs of rows and keys that the tile's blocks cover, of one head.
inline std::int64_t cost(const kernel::HopperTile& tile) {
  return std::int64_t{tile.q_end - tile.q_begin} * (tile.k_end - tile.k_begin);
}

/// How many of the last tiles cover `pairs` pairs together: what runs first beside a transfer that starts. All
/// of them where that would be a fourth of the pairs of `tiles` or more.
std::size_t opening_tiles(std::span<const kernel::HopperTile> tiles, std::int64_t pairs);

}  // namespace bdcp::attention
