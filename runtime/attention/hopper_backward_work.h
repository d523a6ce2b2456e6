// The work list of the Hopper backward. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/portable_work.h"
#include "kernel_templates/hopper_backward_args.h"
#include "plan/plan.h"

namespace bdcp::attention {

struct HopperBackwardWork {
  /// Every key position of the rank, padding and remote rows included, in exactly one tile; in each part by
  /// groups of documents and longest first, those of one document in the order of their keys.
  PartList<kernel::HopperKeyTile> tiles;
  std::size_t split_local = 0,
              split_remote = 0;                 ///< the first tiles of each part: those with an item per q head
  std::vector<kernel::HopperKeyRows> key_rows;  ///< of shared tiles
  std::vector<plan::Segment> segments;          ///< the plan's, without rows that see no key
  /// Every query row, padding included, in exactly one chunk; but rows whose keys are all in one tile in none
  /// unless wanted.
  PartList<kernel::HopperRows> chunks;
  std::size_t sum_blocks = 0;  ///< blocks of dQ sums
};

/// Pairs of rows and keys, of one head.
inline std::int64_t cost(const kernel::HopperKeyTile& tile) {
  return std::int64_t{tile.k_end - tile.k_begin} * (tile.q_end - tile.q_begin);
}

struct HopperBackwardTiling {
  int rows, keys;               ///< query rows per block; most keys of a tile
  bool share = true;            ///< whole segments of so many keys share a tile
  std::int64_t group_rows = 0;  ///< see plan::group_documents
  bool split = false;           ///< the tiles of longer segments come first, with an item per q head
  bool whole_chunks = false;    ///< chunks also for rows whose keys are all in one tile
  int stagger = 0;              ///< tiles whose rows are the same begin so many blocks apart
};
HopperBackwardWork make_hopper_backward_work(const plan::RankPlan& plan, const HopperBackwardTiling& tiling);

}  // namespace bdcp::attention
