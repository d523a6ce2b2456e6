// The own tile schedule of a rank: which query rows visit which key positions, longest first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace bdcp::plan {

struct TileOptions {
  int rows = 128;           ///< query rows per tile
  int keys = 128;           ///< key positions per block inside a tile
  bool share_short = true;  ///< whole documents shorter than a tile may share one
  int shared_keys = 0;      ///< most keys of a shared tile; 0: the larger of rows and keys
};

/// Query rows [q_begin, q_end) of segments [seg_begin, seg_end) visit key positions [k_begin, k_end).
/// Shared tiles hold whole segments. Blocks inside [full_begin, full_end) are visible to every row of the tile
/// (no mask); blocks elsewhere need one. Positions are multiples of nothing: k_begin is the first visible key,
/// and blocks count from it.
struct Tile {
  std::int32_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;
  std::int32_t seg_begin = 0, seg_end = 0;
  std::int32_t full_begin = 0, full_end = 0;
  bool remote = false;  ///< visits keys below remote_len
  std::int64_t cost() const { return static_cast<std::int64_t>(q_end - q_begin) * (k_end - k_begin); }
};

/// Local tiles first (they run while remote K/V is in flight), then remote ones; inside each part longest
/// first, ties in row order. Every row of the rank is in exactly one tile: rows no key of which is visible,
/// padding rows included, are in tiles with an empty key range or beside rows that have keys. Padding tiles
/// have an empty segment range.
struct TileSchedule {
  std::vector<Tile> tiles;
  std::int32_t local_tiles = 0;
};
/// Throws Error(invalid_argument) unless rows and keys are at least 1.
TileSchedule make_tile_schedule(const RankPlan& plan, const TileOptions& options = {});

/// Empty, or which index of `schedule` a kernel must not consume with `plan`. O(tiles).
std::string schedule_guard(const RankPlan& plan, const TileSchedule& schedule);

/// Kinds of layouts kernels are specialised for, by where most of a rank's rows are: single = at most one
/// document with rows; long_docs = at least 3/4 of the rows in documents of 1024 rows or more; tiny = at least
/// half in documents below 32 rows; short_docs = at least half below 128 rows; mixed = anything else.
enum class LayoutClass { single, long_docs, mixed, short_docs, tiny };
const char* to_string(LayoutClass layout_class);
LayoutClass classify(const RankPlan& plan);

}  // namespace bdcp::plan
