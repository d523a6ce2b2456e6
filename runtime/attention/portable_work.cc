#include "attention/portable_work.h"

#include <algorithm>

#include "plan/document_groups.h"

namespace bdcp::attention {
namespace {

using kernel::PortableKeyTile;
using kernel::PortableRows;
using kernel::PortableTile;
using plan::RankPlan;
using plan::Segment;

/// Rows of `s` that see any key position from `position` on.
int first_row(const Segment& s, int position) { return std::max(s.q_begin, s.q_end - (s.k_end - position)); }

/// The first row that sees a key of its own segment; those before it have gradients of exactly zero, whatever
/// the tensors hold, and belong to no tile of keys.
int first_seeing_row(const Segment& s) { return s.keys() == 0 ? s.q_end : first_row(s, s.k_begin); }

std::int64_t cost(const PortableKeyTile& t) {
  return static_cast<std::int64_t>(t.k_end - t.k_begin) * (t.q_end - t.q_begin);
}

void append_long(std::vector<PortableKeyTile>& tiles, const RankPlan& plan, int index, int keys) {
  const Segment& s = plan.segments[static_cast<std::size_t>(index)];
  for (std::int64_t next = s.k_begin; next < s.k_end; next += keys) {  // 64 bits: positions go up to 2^31 - 1
    const int begin = static_cast<int>(next);
    PortableKeyTile& tile = tiles.emplace_back();  // filled in place: a copy of fresh stores stalls
    tile.k_begin = begin;
    tile.k_end = static_cast<int>(std::min<std::int64_t>(next + keys, s.k_end));
    tile.q_begin = first_row(s, begin);
    tile.q_end = s.q_end;
    tile.seg_begin = index;
    tile.seg_end = index + 1;
    if (tile.k_end - begin == keys) {  // a tile with missing keys is always masked
      tile.full_begin = std::max(tile.q_begin, first_row(s, tile.k_end - 1));
      tile.full_end = s.q_end;
    }
  }
}

/// Whole segments [begin, end).
void append_whole(std::vector<PortableKeyTile>& tiles, const RankPlan& plan, int begin, int end, int keys) {
  const Segment& first = plan.segments[static_cast<std::size_t>(begin)];
  const Segment& last = plan.segments[static_cast<std::size_t>(end - 1)];
  PortableKeyTile tile{};
  tile.k_begin = first.k_begin;
  tile.k_end = last.k_end;
  tile.q_begin = end - begin == 1 ? first_seeing_row(first) : first.q_begin;
  tile.q_end = last.q_end;
  tile.seg_begin = begin;
  tile.seg_end = end;
  tile.whole = 1;
  if (end - begin == 1 && tile.k_end - tile.k_begin == keys) {
    tile.full_begin = first_row(first, tile.k_end - 1);
    tile.full_end = first.q_end;
  }
  tiles.push_back(tile);
}

/// `shortest`: segments with fewer keys are left out.
PartList<PortableTile> query_tiles(const RankPlan& plan, const plan::TileOptions& options, int shortest) {
  const plan::TileSchedule schedule = plan::make_tile_schedule(plan, options);
  PartList<PortableTile> list;
  for (std::size_t i = 0; i < schedule.tiles.size(); ++i) {
    const plan::Tile& t = schedule.tiles[i];
    if (shortest > 0 &&
        (t.seg_begin == t.seg_end || plan.segments[static_cast<std::size_t>(t.seg_begin)].keys() < shortest))
      continue;
    const bool one = t.seg_end - t.seg_begin == 1;  // shared tiles mask every block
    list.items.push_back({t.q_begin, t.q_end, t.k_begin, t.k_end, t.seg_begin, t.seg_end,
                          one ? t.full_begin : 0, one ? t.full_end : 0});
    if (i < static_cast<std::size_t>(schedule.local_tiles)) list.local_count = list.items.size();
  }
  return list;
}

}  // namespace

PartList<PortableTile> make_query_tiles(const RankPlan& plan, const plan::TileOptions& options) {
  return query_tiles(plan, options, 0);
}

PartList<PortableTile> make_dq_tiles(const RankPlan& plan, const plan::TileOptions& options, int keys) {
  plan::TileOptions alone = options;
  alone.share_short = false;
  return query_tiles(plan, alone, keys + 1);
}

PartList<PortableKeyTile> make_key_tiles(const RankPlan& plan, int keys, bool share, std::int64_t group_rows) {
  PartList<PortableKeyTile> list;
  list.items.reserve(plan.segments.size() + static_cast<std::size_t>(plan.key_rows / keys) + 1);
  std::vector<PortableKeyTile> remote;
  const int count = static_cast<int>(plan.segments.size());
  for (int i = 0; i < count;) {
    const Segment& s = plan.segments[static_cast<std::size_t>(i)];
    std::vector<PortableKeyTile>& target = i < plan.remote_segments() ? remote : list.items;
    if (s.keys() > keys) {
      append_long(target, plan, i, keys);
      ++i;
      continue;
    }
    // Rows without keys beside rows with some keep a segment to itself, see first_seeing_row.
    const auto shares = [&](const Segment& one) {
      return one.keys() == 0 || first_seeing_row(one) == one.q_begin;
    };
    int end = i + 1;
    while (share && i >= plan.remote_segments() && end < count && shares(s) &&
           shares(plan.segments[static_cast<std::size_t>(end)]) &&
           plan.segments[static_cast<std::size_t>(end)].k_end - s.k_begin <= keys &&
           plan.segments[static_cast<std::size_t>(end)].q_begin ==
               plan.segments[static_cast<std::size_t>(end - 1)].q_end)
      ++end;
    // A segment without keys needs no tile of its own; inside a shared one it does no harm.
    if (plan.segments[static_cast<std::size_t>(end - 1)].k_end > s.k_begin)
      append_whole(target, plan, i, end, keys);
    i = end;
  }
  // Keys past the last document: zeros.
  const std::int64_t end = plan.remote_len + plan.key_rows;
  for (std::int64_t begin = plan.segments.empty() ? 0 : plan.segments.back().k_end; begin < end;
       begin += keys) {
    PortableKeyTile tile{};
    tile.k_begin = static_cast<int>(begin);
    tile.k_end = static_cast<int>(std::min(begin + keys, end));
    list.items.push_back(tile);
  }
  const auto segment = [](const PortableKeyTile& t) { return t.seg_begin; };
  const plan::DocumentGroups groups = plan::group_documents(plan, group_rows);
  plan::sort_by_groups(list.items, groups, cost, segment);
  plan::sort_by_groups(remote, groups, cost, segment);
  list.local_count = list.items.size();
  list.items.insert(list.items.end(), remote.begin(), remote.end());
  return list;
}

PartList<PortableRows> make_row_chunks(const RankPlan& plan, int keys) {
  PartList<PortableRows> list;
  list.items.reserve(plan.segments.size() + static_cast<std::size_t>(plan.rows / kRowsPerChunk) + 1);
  std::vector<PortableRows> remote;
  const auto append = [](std::vector<PortableRows>& target, std::int64_t begin, std::int64_t end, int kind) {
    for (; begin < end; begin += kRowsPerChunk)
      target.push_back({static_cast<int>(begin), static_cast<int>(std::min(begin + kRowsPerChunk, end)), kind});
  };
  for (int i = 0; i < static_cast<int>(plan.segments.size()); ++i) {
    const Segment& s = plan.segments[static_cast<std::size_t>(i)];
    std::vector<PortableRows>& target = i < plan.remote_segments() ? remote : list.items;
    const int first = first_seeing_row(s);
    append(target, s.q_begin, first, kernel::kRowsZero);
    append(target, first, s.q_end, s.keys() <= keys ? kernel::kRowsWhole : kernel::kRowsSummed);
  }
  append(list.items, plan.segments.empty() ? 0 : plan.segments.back().q_end, plan.rows, kernel::kRowsZero);
  list.local_count = list.items.size();
  list.items.insert(list.items.end(), remote.begin(), remote.end());
  return list;
}

}  // namespace bdcp::attention
