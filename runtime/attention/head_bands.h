// A few K/V heads at a time: how many for a work list, and how its launch says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "kernel_templates/hopper_args.h"
#include "plan/head_bands.h"

namespace bdcp::attention {

/// The tiles of one part of a list whose local ones come first.
template <class Tile>
std::span<const Tile> part_of(const std::vector<Tile>& tiles, std::size_t local_count, Part part) {
  const std::span<const Tile> all = tiles;
  return part == Part::local ? all.first(local_count) : all.subspan(local_count);
}

/// A tile, to plan::HeadBandFacts: what it reads, of all heads, and what one of its items costs.
struct TileLoad {
  std::int64_t bytes = 0, cost = 0;
};

/// How many K/V heads the tiles of one part take at a time. `items`: of a tile, for each K/V head.
/// `cache_bytes`: see plan::HeadBandFacts. `load(tile)`: its TileLoad.
template <class Tile, class Load>
int heads_at_once(std::span<const Tile> tiles, const CallShape& shape, const PrepareContext& context, int items,
                  std::int64_t cache_bytes, const Load& load) {
  if (context.room.wanted()) return shape.heads_kv;
  if (context.heads_at_once > 0) return context.heads_at_once;
  std::int64_t longest_bytes = 0, cost = 0, longest_cost = 0;
  for (const Tile& tile : tiles) {
    const TileLoad one = load(tile);
    longest_bytes = std::max(longest_bytes, one.bytes);
    longest_cost = std::max(longest_cost, one.cost);
    cost += one.cost;
  }
  return plan::heads_at_once({.heads = shape.heads_kv,
                              .longest_bytes = longest_bytes,
                              .cache_bytes = cache_bytes,
                              .total_cost = cost * items,
                              .longest_cost = longest_cost,
                              .sms = context.device->facts().sm_count});
}

/// Items of `tiles` tiles, few heads of `heads` at a time.
inline kernel::HeadBands head_bands(std::size_t tiles, int few, int heads) {
  if (few >= heads)
    return {1 << 30, heads};  // kernels count up to that many; the tiles may be counted on the device
  return {static_cast<int>(tiles) * few, few};
}

}  // namespace bdcp::attention
