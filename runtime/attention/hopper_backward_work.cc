#include "attention/hopper_backward_work.h"

#include <algorithm>
#include <cstdint>

#include "plan/document_groups.h"

namespace bdcp::attention {
namespace {

using kernel::HopperKeyRows;
using kernel::HopperKeyTile;
using kernel::HopperRows;
using plan::RankPlan;
using plan::Segment;

/// Rows of `s` that see any key position from `position` on.
int first_row(const Segment& s, int position) { return std::max(s.q_begin, s.q_end - (s.k_end - position)); }

/// `s` without the rows that see no key: their dQ is exactly zero, whatever the tensors hold, and they belong
/// to no tile.
Segment seeing(Segment s) {
  s.q_begin = s.q_end - std::min(s.rows(), s.keys());
  return s;
}

/// Rows that see every key of a tile of one segment; none where keys are missing, as those need the mask.
void set_full(HopperKeyTile& tile, const Segment& s, int keys) {
  if (tile.k_end - tile.k_begin != keys) return;
  tile.full_begin = first_row(s, tile.k_end - 1);
  tile.full_end = s.q_end;
}

void append_long(std::vector<HopperKeyTile>& tiles, const Segment& s, int segment, int rows, int keys,
                 int sum_block, int stagger) {
  const int blocks = std::max((s.rows() + rows - 1) / rows, 1);
  int index = 0;
  for (std::int64_t next = s.k_begin; next < s.k_end; next += keys) {  // 64 bits: positions go up to 2^31 - 1
    HopperKeyTile& tile = tiles.emplace_back();
    tile.k_begin = static_cast<int>(next);
    tile.k_end = static_cast<int>(std::min<std::int64_t>(next + keys, s.k_end));
    // All tiles of the segment have the same blocks of rows: they add to the same sums.
    const int block = (first_row(s, tile.k_begin) - s.q_begin) / rows;
    tile.q_begin = s.q_begin + block * rows;
    tile.q_end = s.q_end;
    tile.seg_begin = segment;
    tile.seg_end = segment + 1;
    tile.rows_at = -1;
    tile.sum_block = sum_block + block;
    if (block == 0) tile.start = static_cast<int>(std::int64_t{index} * stagger % blocks);
    tile.index = index++;
    set_full(tile, s, keys);
  }
}

void append_key_rows(std::vector<HopperKeyRows>& key_rows, const Segment& s) {
  for (int position = s.k_begin; position < s.k_end; ++position) {
    const int first = s.q_end - (s.k_end - position), begin = first_row(s, position);
    const bool alone = first >= s.q_begin && position == s.k_begin;
    key_rows.push_back({begin, s.q_end, alone ? first + 1 : begin, 0});
  }
}

/// Whole segments [begin, end).
void append_whole(HopperBackwardWork& work, std::vector<HopperKeyTile>& tiles, int begin, int end, int keys) {
  const auto segment = [&](int i) -> const Segment& { return work.segments[static_cast<std::size_t>(i)]; };
  HopperKeyTile& tile = tiles.emplace_back();
  tile.k_begin = segment(begin).k_begin;
  tile.k_end = segment(end - 1).k_end;
  tile.q_begin = segment(begin).q_begin;
  tile.q_end = segment(end - 1).q_end;
  tile.seg_begin = begin;
  tile.seg_end = end;
  tile.rows_at = tile.sum_block = -1;
  if (end - begin == 1) {
    set_full(tile, segment(begin), keys);
  } else {
    tile.rows_at = static_cast<int>(work.key_rows.size());
    for (int i = begin; i < end; ++i) append_key_rows(work.key_rows, segment(i));
  }
}

void append_chunks(std::vector<HopperRows>& chunks, std::int64_t begin, std::int64_t end, int rows, int kind,
                   int sum_block) {
  for (; begin < end; begin += rows) {
    chunks.push_back({static_cast<int>(begin), static_cast<int>(std::min(begin + rows, end)), kind, sum_block});
    if (sum_block >= 0) ++sum_block;
  }
}

}  // namespace

HopperBackwardWork make_hopper_backward_work(const RankPlan& plan, const HopperBackwardTiling& tiling) {
  const int rows = tiling.rows, keys = tiling.keys;
  HopperBackwardWork work;
  std::vector<HopperKeyTile>& local = work.tiles.items;
  std::vector<HopperKeyTile> remote;
  std::vector<HopperRows> remote_chunks;
  const int count = static_cast<int>(plan.segments.size());
  work.segments.reserve(plan.segments.size());
  for (const Segment& s : plan.segments) work.segments.push_back(seeing(s));
  const auto segment = [&](int i) -> const Segment& { return work.segments[static_cast<std::size_t>(i)]; };
  for (int i = 0; i < count; ++i) {
    const Segment& s = segment(i);
    std::vector<HopperRows>& chunks = i < plan.remote_segments() ? remote_chunks : work.chunks.items;
    append_chunks(chunks, plan.segments[static_cast<std::size_t>(i)].q_begin, s.q_begin, rows,
                  kernel::kRowsZero, -1);
    const bool is_long = s.keys() > keys;
    const int block = is_long ? static_cast<int>(work.sum_blocks) : -1;
    if (is_long || tiling.whole_chunks)
      append_chunks(chunks, s.q_begin, s.q_end, rows, is_long ? kernel::kRowsSummed : kernel::kRowsWhole,
                    block);
    if (!is_long) continue;
    append_long(i < plan.remote_segments() ? remote : local, s, i, rows, keys, block, tiling.stagger);
    work.sum_blocks += (static_cast<std::size_t>(s.rows()) + rows - 1) / rows;
  }
  for (int i = 0; i < count;) {
    const Segment& s = segment(i);
    int end = i + 1;
    if (s.keys() <= keys) {
      while (tiling.share && i >= plan.remote_segments() && end < count &&
             segment(end).k_end - s.k_begin <= keys && segment(end).q_begin == segment(end - 1).q_end)
        ++end;
      if (segment(end - 1).k_end > s.k_begin)
        append_whole(work, i < plan.remote_segments() ? remote : local, i, end, keys);
    }
    i = end;
  }
  // Keys past the last document: zeros.
  const std::int64_t end = plan.remote_len + plan.key_rows;
  for (std::int64_t begin = count == 0 ? 0 : segment(count - 1).k_end; begin < end; begin += keys) {
    HopperKeyTile& tile = local.emplace_back();
    tile.k_begin = static_cast<int>(begin);
    tile.k_end = static_cast<int>(std::min(begin + keys, end));
    tile.rows_at = tile.sum_block = -1;
  }
  append_chunks(work.chunks.items, count == 0 ? 0 : segment(count - 1).q_end, plan.rows, rows,
                kernel::kRowsZero, -1);
  const auto first_segment = [](const HopperKeyTile& t) { return t.seg_begin; };
  const plan::DocumentGroups groups = plan::group_documents(plan, tiling.group_rows);
  plan::sort_by_groups(local, groups, cost, first_segment);
  plan::sort_by_groups(remote, groups, cost, first_segment);
  const auto split_first = [&](std::vector<HopperKeyTile>& tiles) {
    if (!tiling.split) return std::size_t{0};
    const auto is_long = [](const HopperKeyTile& t) { return t.sum_block >= 0; };
    return static_cast<std::size_t>(std::stable_partition(tiles.begin(), tiles.end(), is_long) - tiles.begin());
  };
  work.split_local = split_first(local);
  work.split_remote = split_first(remote);
  work.tiles.local_count = local.size();
  local.insert(local.end(), remote.begin(), remote.end());
  work.chunks.local_count = work.chunks.items.size();
  work.chunks.items.insert(work.chunks.items.end(), remote_chunks.begin(), remote_chunks.end());
  return work;
}

}  // namespace bdcp::attention
