#include "plan/tile_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "plan/cost_order.h"

namespace bdcp::plan {
namespace {

class Builder {
 public:
  Builder(const RankPlan& plan, const TileOptions& options) : plan_(plan), options_(options) {}

  TileSchedule build() {
    const auto segments = static_cast<std::int32_t>(plan_.segments.size());
    tiles_.reserve(static_cast<std::size_t>(plan_.rows / options_.rows) + plan_.segments.size() + 1);
    for (std::int32_t i = 0; i < plan_.remote_segments(); ++i) add_segment(i);
    std::vector<Tile> remote = std::exchange(tiles_, {});
    tiles_.reserve(remote.capacity());
    for (std::int32_t i = plan_.remote_segments(); i < segments;) {
      const std::int32_t end = shared_end(i);
      if (end - i > 1) {
        add_shared(i, end);
      } else {
        add_segment(i);
      }
      i = end;
    }
    add_padding();
    const auto cost = [](const Tile& tile) { return tile.cost(); };
    sort_costliest_first(tiles_, cost);
    TileSchedule schedule;
    schedule.local_tiles = static_cast<std::int32_t>(tiles_.size());
    sort_costliest_first(remote, cost);
    tiles_.insert(tiles_.end(), remote.begin(), remote.end());
    schedule.tiles = std::move(tiles_);
    return schedule;
  }

 private:
  /// The end of the longest run of whole segments from `first` that fits one tile; first + 1 where none does.
  /// Keys count as well: a run whose keys exceed a tile would make each row visit all of them.
  std::int32_t shared_end(std::int32_t first) const {
    const std::vector<Segment>& segments = plan_.segments;
    const int key_limit =
        options_.shared_keys > 0 ? options_.shared_keys : std::max(options_.rows, options_.keys);
    auto end = static_cast<std::size_t>(first);
    if (options_.share_short) {
      while (end < segments.size() && segments[end].q_end - segments[first].q_begin <= options_.rows &&
             segments[end].k_end - segments[first].k_begin <= key_limit) {
        ++end;
      }
    }
    return std::max(static_cast<std::int32_t>(end), first + 1);
  }

  void add_shared(std::int32_t begin, std::int32_t end) {
    const Segment& first = plan_.segments[begin];
    const Segment& last = plan_.segments[end - 1];
    if (last.q_end == first.q_begin) return;  // keys without queries
    tiles_.push_back({first.q_begin, last.q_end, first.k_begin, last.k_end, begin, end, first.k_begin,
                      first.k_begin, false});
  }

  void add_segment(std::int32_t index) {
    const Segment& segment = plan_.segments[index];
    const std::int32_t shift = segment.keys() - segment.rows(), keys = options_.keys;
    std::int32_t full = 0;  // keys that every row of the tile sees, in whole blocks
    // 64 bits: a document may end just below 2^31, where the next tile's row does not fit 32.
    for (std::int64_t first = 0; first < segment.rows(); first += options_.rows) {
      const auto row = static_cast<std::int32_t>(first);
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(first + options_.rows, segment.rows()));
      const std::int32_t seen_by_first = std::max(row + shift + 1, 0), seen_by_last = std::max(end + shift, 0);
      if (seen_by_first - full >= keys) full = seen_by_first / keys * keys;
      Tile& tile = tiles_.emplace_back();  // filled in place: a copy of fresh stores stalls
      tile.q_begin = segment.q_begin + row;
      tile.q_end = segment.q_begin + end;
      tile.k_begin = tile.full_begin = segment.k_begin;
      tile.k_end = segment.k_begin + seen_by_last;
      tile.seg_begin = index;
      tile.seg_end = index + 1;
      tile.full_end = segment.k_begin + full;
      tile.remote = index < plan_.remote_segments();
    }
  }

  void add_padding() {
    const auto segments = static_cast<std::int32_t>(plan_.segments.size());
    for (std::int64_t row = plan_.range.n_real; row < plan_.rows; row += options_.rows) {
      Tile tile;
      tile.q_begin = static_cast<std::int32_t>(row);
      tile.q_end = static_cast<std::int32_t>(std::min(row + options_.rows, plan_.rows));
      tile.seg_begin = tile.seg_end = segments;
      tiles_.push_back(tile);
    }
  }

  const RankPlan& plan_;
  const TileOptions& options_;
  std::vector<Tile> tiles_;
};

}  // namespace

TileSchedule make_tile_schedule(const RankPlan& plan, const TileOptions& options) {
  require(options.rows >= 1 && options.keys >= 1, ErrorCode::invalid_argument, [&] {
    return fmt::format("tile of {} rows and {} keys; allowed: at least 1 of each", options.rows, options.keys);
  });
  return Builder(plan, options).build();
}

std::string schedule_guard(const RankPlan& plan, const TileSchedule& schedule) {
  const auto segments = static_cast<std::int32_t>(plan.segments.size());
  const std::int64_t keys = plan.remote_len + plan.key_rows;
  if (schedule.local_tiles < 0 || static_cast<std::size_t>(schedule.local_tiles) > schedule.tiles.size()) {
    return fmt::format("local_tiles is {} of {} tiles", schedule.local_tiles, schedule.tiles.size());
  }
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < schedule.tiles.size(); ++i) {
    const Tile& tile = schedule.tiles[i];
    if (tile.q_begin < 0 || tile.q_end <= tile.q_begin || tile.q_end > plan.rows) {
      return fmt::format("tile {} has rows [{}, {}) outside [0, {})", i, tile.q_begin, tile.q_end, plan.rows);
    }
    if (tile.k_begin < 0 || tile.k_end < tile.k_begin || tile.k_end > keys) {
      return fmt::format("tile {} has keys [{}, {}) outside [0, {})", i, tile.k_begin, tile.k_end, keys);
    }
    if (tile.full_begin < tile.k_begin || tile.full_end < tile.full_begin || tile.full_end > tile.k_end) {
      return fmt::format("tile {} has unmasked keys [{}, {}) outside its keys [{}, {})", i, tile.full_begin,
                         tile.full_end, tile.k_begin, tile.k_end);
    }
    if (tile.seg_begin < 0 || tile.seg_end < tile.seg_begin || tile.seg_end > segments) {
      return fmt::format("tile {} has segments [{}, {}) outside [0, {})", i, tile.seg_begin, tile.seg_end,
                         segments);
    }
    const bool remote = tile.k_end > tile.k_begin && tile.k_begin < plan.remote_len;
    if (remote != tile.remote || remote != (i >= static_cast<std::size_t>(schedule.local_tiles))) {
      return fmt::format("tile {} with keys from {} is on the wrong side of local_tiles = {}", i, tile.k_begin,
                         schedule.local_tiles);
    }
    rows += tile.q_end - tile.q_begin;
  }
  if (rows != plan.rows) return fmt::format("tiles hold {} rows; the rank has {}", rows, plan.rows);
  return {};
}

const char* to_string(LayoutClass layout_class) {
  switch (layout_class) {
    case LayoutClass::single:
      return "single";
    case LayoutClass::long_docs:
      return "long_docs";
    case LayoutClass::mixed:
      return "mixed";
    case LayoutClass::short_docs:
      return "short_docs";
    case LayoutClass::tiny:
      return "tiny";
  }
  return "unknown";
}

LayoutClass classify(const RankPlan& plan) {
  std::int64_t documents = 0, rows = 0, below_32 = 0, below_128 = 0, from_1024 = 0;
  for (const Segment& segment : plan.segments) {
    const std::int64_t count = segment.rows();
    documents += count > 0;
    rows += count;
    if (count < 32) below_32 += count;
    if (count < 128) below_128 += count;
    if (count >= 1024) from_1024 += count;
  }
  if (documents <= 1) return LayoutClass::single;
  if (2 * below_32 >= rows) return LayoutClass::tiny;
  if (2 * below_128 >= rows) return LayoutClass::short_docs;
  if (4 * from_1024 >= 3 * rows) return LayoutClass::long_docs;
  return LayoutClass::mixed;
}

}  // namespace bdcp::plan
