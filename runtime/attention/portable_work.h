// Work lists of the portable kernels: query tiles, key tiles and row chunks. Pure.
#pragma once

#include <vector>

#include "kernel_templates/portable_args.h"
#include "plan/plan.h"
#include "plan/tile_schedule.h"

namespace bdcp::attention {

template <class T>
struct PartList {
  std::vector<T> items;  ///< local ones, then remote ones
  std::size_t local_count = 0;
};

/// Every query row in exactly one tile, as plan::make_tile_schedule orders them.
PartList<kernel::PortableTile> make_query_tiles(const plan::RankPlan& plan, const plan::TileOptions& options);

/// Query tiles of the segments with more than `keys` keys, whose dQ no single key tile completes. Segments do
/// not share these tiles.
PartList<kernel::PortableTile> make_dq_tiles(const plan::RankPlan& plan, const plan::TileOptions& options,
                                             int keys);

/// Every key position of the rank, padding and remote rows included, in exactly one tile; by groups of
/// documents (plan::TileOptions), in each longest first. Whole segments of up to `keys` keys share a tile if
/// `share`.
PartList<kernel::PortableKeyTile> make_key_tiles(const plan::RankPlan& plan, int keys, bool share,
                                                 std::int64_t group_rows = 0);

constexpr int kRowsPerChunk = 32;

/// Every query row, padding included, in exactly one chunk. Rows of segments with at most `keys` keys have
/// their dQ written by one tile, rows of longer ones by several, rows without keys by nobody.
PartList<kernel::PortableRows> make_row_chunks(const plan::RankPlan& plan, int keys);

}  // namespace bdcp::attention
