// The work list of the Hopper forward. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "kernel_templates/hopper_args.h"
#include "plan/plan.h"

namespace bdcp::attention {

struct HopperWork {
  std::vector<kernel::HopperTile> tiles;  ///< local ones, then remote ones; longest first in each part
  std::size_t local_count = 0;
  std::vector<kernel::KeyRange> visible;  ///< of the rows of shared tiles
};

/// Tiles of `tokens` rows and blocks of `keys`; whole segments share a tile if `share` and their keys fit one
/// block.
HopperWork make_hopper_work(const plan::RankPlan& plan, int tokens, int keys, bool share);

}  // namespace bdcp::attention
