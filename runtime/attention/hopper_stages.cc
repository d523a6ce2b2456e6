#include "attention/hopper_stages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/cost_order.h"

namespace bdcp::attention {
namespace {

using kernel::HopperTile;

/// Blocks of the tile that hold remote keys.
int remote_blocks(const HopperTile& tile, std::int64_t remote_len, int keys) {
  return static_cast<int>((remote_len - tile.k_begin + keys - 1) / keys);
}

/// Of one document, and every row sees all of the blocks with remote keys and some block beside.
bool can_stage(const HopperTile& tile, std::int64_t remote_len, int keys) {
  const int blocks = remote_blocks(tile, remote_len, keys);
  return tile.rows_at < 0 && blocks > 0 && tile.unmasked >= blocks &&
         tile.k_end - tile.k_begin > static_cast<std::int64_t>(blocks) * keys;
}

std::int64_t local_pairs(const HopperTile& tile, std::int64_t remote_len, int keys) {
  return cost(tile) - std::int64_t{tile.q_end - tile.q_begin} * remote_blocks(tile, remote_len, keys) * keys;
}

}  // namespace

std::size_t stage_tiles(HopperWork& work, std::int64_t remote_len, int keys, std::int64_t pairs,
                        std::size_t most) {
  std::vector<std::size_t> candidates;
  std::int64_t all = 0;
  for (std::size_t i = work.local_count; i < work.tiles.size(); ++i)
    if (can_stage(work.tiles[i], remote_len, keys)) {
      candidates.push_back(i);
      all += local_pairs(work.tiles[i], remote_len, keys);
    }
  if (pairs <= 0 || all <= 0) return 0;
  // Every so manieth: they are in order of length.
  const auto wanted = static_cast<std::size_t>(std::min(
      static_cast<double>(candidates.size()),
      static_cast<double>(pairs) / static_cast<double>(all) * static_cast<double>(candidates.size()) + 1));
  const std::size_t count = std::min(wanted, most);
  if (count == 0) return 0;
  std::vector<HopperTile> kept;
  for (std::size_t n = 0; n < count; ++n) {
    HopperTile& tile = work.tiles[candidates[n * candidates.size() / count]];
    const int blocks = remote_blocks(tile, remote_len, keys);
    HopperTile& local = kept.emplace_back(tile);
    local.k_begin = tile.k_begin + blocks * keys;
    local.unmasked = tile.unmasked - blocks;
    local.state = static_cast<int>(n) + 1;
    tile.k_end = local.k_begin;
    tile.unmasked = blocks;
    tile.state = -local.state;
  }
  // Those of local documents stay as they are, in groups that fit the cache.
  const auto of_local = work.tiles.begin() + static_cast<std::ptrdiff_t>(work.local_count);
  std::vector<HopperTile> remote(of_local, work.tiles.end());
  const auto length = [](const HopperTile& tile) { return cost(tile); };
  plan::sort_costliest_first(kept, length);
  plan::sort_costliest_first(remote, length);
  kept.insert(kept.end(), work.tiles.begin(), of_local);
  work.local_count = kept.size();
  kept.insert(kept.end(), remote.begin(), remote.end());
  work.tiles = std::move(kept);
  return count;
}

}  // namespace bdcp::attention
