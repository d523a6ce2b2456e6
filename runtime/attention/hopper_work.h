// The work list of the Hopper forward. Pure.
#pragma once

#include <cstddef>
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

}  // namespace bdcp::attention
