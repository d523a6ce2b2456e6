#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace bdcp::plan {
namespace {

std::int64_t triangle(std::int64_t n) { return n * (n + 1) / 2; }

/// Visible pairs of the last `rows` query rows of a document that has `keys` keys up to its last row.
std::int64_t visible_pairs(std::int64_t rows, std::int64_t keys) {
  return rows <= keys ? triangle(keys) - triangle(keys - rows) : triangle(keys);
}

/// Ranges and areas of a square layout, in one pass over documents and ranks together.
void square_ranges(const DocLayout& layout, GlobalPlan& plan) {
  const std::span<const std::int64_t> cu = layout.cu_q();
  const std::int64_t real = layout.real_tokens(), local = plan.local_len;
  std::size_t document = 0;  // the first one that ends after the rank's first row
  for (int rank = 0; rank < plan.world; ++rank) {
    RankRange& range = plan.ranks[rank];
    range.row_offset = rank * local;
    range.n_real = std::clamp<std::int64_t>(real - range.row_offset, 0, local);
    range.s_first = range.real_end = range.row_offset;
    if (range.n_real == 0) continue;
    range.real_end = range.row_offset + range.n_real;
    while (cu[document + 1] <= range.row_offset) ++document;
    range.s_first = cu[document];
    range.back = range.row_offset - range.s_first;
    std::int64_t area = 0, row = range.row_offset;
    for (; cu[document + 1] < range.real_end; ++document) {
      area += visible_pairs(cu[document + 1] - row, cu[document + 1] - cu[document]);
      row = cu[document + 1];
    }
    plan.area[rank] = area + visible_pairs(range.real_end - row, range.real_end - cu[document]);
  }
}

void rectangular_range(const DocLayout& layout, GlobalPlan& plan) {
  const std::span<const std::int64_t> q = layout.cu_q(), k = layout.cu_k();
  plan.ranks[0].n_real = layout.real_tokens();
  plan.ranks[0].real_end = layout.real_keys();
  for (std::int64_t document = 0; document < layout.documents(); ++document) {
    plan.area[0] += visible_pairs(q[document + 1] - q[document], k[document + 1] - k[document]);
  }
}

/// What dst needs of src's chunk; src < dst and dst's first document reaches into it.
Edge edge_between(const GlobalPlan& plan, int src, int dst) {
  const std::int64_t begin = std::max(plan.ranks[dst].s_first, src * plan.local_len);
  return {src, dst, begin, (src + 1) * plan.local_len - begin};
}

/// Whether dst needs tokens of src's chunk.
bool needs(const GlobalPlan& plan, int src, int dst) {
  return plan.ranks[dst].back > 0 && plan.ranks[dst].s_first < (src + 1) * plan.local_len;
}

void add_transfers(GlobalPlan& plan) {
  plan.halo.recv.resize(plan.world);
  plan.halo.send.resize(plan.world);
  std::size_t edges = 0;
  for (const RankRange& range : plan.ranks) {
    if (range.back > 0) edges += static_cast<std::size_t>((range.back + plan.local_len - 1) / plan.local_len);
  }
  plan.edges.reserve(edges);
  for (int rank = 0; rank < plan.world; ++rank) {
    const RankRange& range = plan.ranks[rank];
    plan.halo.recv[rank] = range.back;
    if (rank > 0) plan.halo.send[rank - 1] = range.back;
    if (range.back == 0) continue;
    plan.halo.feasible = plan.halo.feasible && range.back <= plan.local_len;
    for (int src = static_cast<int>(range.s_first / plan.local_len); src < rank; ++src) {
      plan.edges.push_back(edge_between(plan, src, rank));
    }
  }
}

void add_square_segments(const DocLayout& layout, RankPlan& out) {
  const RankRange& range = out.range;
  if (range.n_real == 0) return;
  const std::span<const std::int64_t> cu = layout.cu_q();
  auto document = std::upper_bound(cu.begin(), cu.end(), range.row_offset) - 1;
  const auto last = std::lower_bound(document, cu.end(), range.real_end);
  out.segments.reserve(static_cast<std::size_t>(last - document));
  for (std::int64_t row = range.row_offset; row < range.real_end; ++document) {
    const std::int64_t end = std::min(document[1], range.real_end);
    out.segments.push_back(
        {static_cast<std::int32_t>(row - range.row_offset), static_cast<std::int32_t>(end - range.row_offset),
         static_cast<std::int32_t>(*document - range.s_first), static_cast<std::int32_t>(end - range.s_first)});
    row = end;
  }
}

void add_rectangular_segments(const DocLayout& layout, RankPlan& out) {
  const std::span<const std::int64_t> q = layout.cu_q(), k = layout.cu_k();
  out.segments.reserve(static_cast<std::size_t>(layout.documents()));
  for (std::int64_t i = 0; i < layout.documents(); ++i) {
    out.segments.push_back({static_cast<std::int32_t>(q[i]), static_cast<std::int32_t>(q[i + 1]),
                            static_cast<std::int32_t>(k[i]), static_cast<std::int32_t>(k[i + 1])});
  }
}

VarlenMeta make_meta(const RankPlan& plan) {
  VarlenMeta meta;
  meta.n_real = plan.range.n_real;
  meta.s_first = plan.range.s_first;
  meta.real_end = plan.range.real_end;
  meta.cu_q.reserve(plan.segments.size() + 1);
  meta.cu_k.reserve(plan.segments.size() + 1);
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    meta.cu_q.push_back(segment.q_end);
    meta.cu_k.push_back(segment.k_end);
    meta.max_q = std::max(meta.max_q, segment.rows());
    meta.max_k = std::max(meta.max_k, segment.keys());
    if (i > 0) meta.max_tail = std::max(meta.max_tail, segment.rows());
  }
  if (!plan.segments.empty()) {
    meta.first_q = plan.segments[0].rows();
    meta.first_k = plan.segments[0].keys();
  }
  return meta;
}

}  // namespace

GlobalPlan make_global_plan(const DocLayout& layout) {
  GlobalPlan plan;
  plan.world = layout.world_size();
  plan.local_len = layout.local_tokens();
  plan.tokens = layout.padded_tokens();
  plan.ranks.resize(plan.world);
  plan.area.resize(plan.world);
  if (layout.square()) {
    square_ranges(layout, plan);
  } else {
    rectangular_range(layout, plan);
  }
  add_transfers(plan);
  return plan;
}

RankPlan make_rank_plan(const DocLayout& layout, const GlobalPlan& global, int rank) {
  require(layout.world_size() == global.world && layout.padded_tokens() == global.tokens,
          ErrorCode::invalid_argument, [&] {
            return fmt::format("the plan is for world {} and {} tokens, the layout has world {} and {} tokens",
                               global.world, global.tokens, layout.world_size(), layout.padded_tokens());
          });
  require(rank >= 0 && rank < global.world, ErrorCode::invalid_argument,
          [&] { return fmt::format("rank is {}; allowed: 0 to {}", rank, global.world - 1); });
  RankPlan out;
  out.rank = rank;
  out.square = layout.square();
  out.range = global.ranks[rank];
  out.rows = global.local_len;
  out.key_rows = out.square ? out.rows : layout.key_tokens();
  out.remote_len = out.range.back;
  if (out.square) {
    add_square_segments(layout, out);
  } else {
    add_rectangular_segments(layout, out);
  }
  out.meta = make_meta(out);

  const auto of_dst = [](const Edge& edge, int dst) { return edge.dst < dst; };
  auto own = std::lower_bound(global.edges.begin(), global.edges.end(), rank, of_dst);
  for (; own != global.edges.end() && own->dst == rank; ++own) out.recvs.push_back(*own);
  // s_first never decreases from rank to rank, so the ranks that need this one's tokens follow it directly.
  for (int dst = rank + 1; dst < global.world && needs(global, rank, dst); ++dst) {
    out.sends.push_back(edge_between(global, rank, dst));
  }
  out.shared_begin = out.sends.empty() ? out.key_rows : out.sends.front().begin - out.range.row_offset;
  return out;
}

PathBytes path_bytes(const GlobalPlan& global, std::int64_t bytes_per_token) {
  PathBytes bytes;
  bytes.allgather = (global.world - 1) * global.local_len * global.world * bytes_per_token;
  for (const std::int64_t tokens : global.halo.recv) bytes.halo += tokens * bytes_per_token;
  for (const Edge& edge : global.edges) bytes.a2a += edge.tokens * bytes_per_token;
  return bytes;
}

}  // namespace bdcp::plan
