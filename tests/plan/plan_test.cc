#include "plan/plan.h"

#include <gtest/gtest.h>

#include <map>

#include "support/expect_error.h"
#include "support/layouts.h"

namespace bdcp::plan {
namespace {

using test::LayoutCase;
using test::RandomLayouts;

DocLayout layout_of(const std::vector<std::int64_t>& lengths, LayoutOptions options = {}) {
  return DocLayout::from_lengths(lengths, options);
}

/// The same facts from the definition: one id per token, row by row.
struct Brute {
  explicit Brute(const DocLayout& layout) : ids(layout.doc_ids()), local(layout.local_tokens()) {
    start.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      start[i] = i > 0 && ids[i] == ids[i - 1] ? start[i - 1] : static_cast<std::int64_t>(i);
    }
  }
  RankRange range(int rank) const {
    RankRange out;
    out.row_offset = out.s_first = out.real_end = rank * local;
    for (std::int64_t row = out.row_offset; row < out.row_offset + local; ++row) {
      if (ids[row] == 0) continue;
      out.s_first = std::min(out.s_first, start[row]);
      out.real_end = row + 1;
      ++out.n_real;
    }
    out.back = out.row_offset - out.s_first;
    return out;
  }
  std::int64_t area(int rank) const {
    std::int64_t sum = 0;
    for (std::int64_t row = rank * local; row < (rank + 1) * local; ++row) {
      if (ids[row] != 0) sum += row - start[row] + 1;
    }
    return sum;
  }
  std::vector<std::int64_t> ids, start;
  std::int64_t local;
};

void expect_matches_definition(const LayoutCase& one) {
  SCOPED_TRACE(testing::Message() << one);
  const DocLayout layout = one.layout();
  const GlobalPlan global = make_global_plan(layout);
  const Brute brute(layout);
  std::map<std::pair<int, int>, Edge> by_pair;
  for (const Edge& edge : global.edges) by_pair[{edge.dst, edge.src}] = edge;
  EXPECT_EQ(by_pair.size(), global.edges.size());
  EXPECT_TRUE(std::is_sorted(global.edges.begin(), global.edges.end(), [](const Edge& a, const Edge& b) {
    return std::pair(a.dst, a.src) < std::pair(b.dst, b.src);
  }));
  bool feasible = true;
  std::vector<Edge> sent, received;
  for (int rank = 0; rank < global.world; ++rank) {
    const RankRange want = brute.range(rank), got = global.ranks[rank];
    EXPECT_EQ(got.row_offset, want.row_offset);
    EXPECT_EQ(got.n_real, want.n_real);
    EXPECT_EQ(got.s_first, want.s_first);
    EXPECT_EQ(got.real_end, want.real_end);
    EXPECT_EQ(got.back, want.back);
    EXPECT_EQ(global.area[rank], brute.area(rank));
    EXPECT_EQ(global.halo.recv[rank], want.back);
    EXPECT_EQ(global.halo.send[rank], rank + 1 < global.world ? brute.range(rank + 1).back : 0);
    feasible = feasible && want.back <= brute.local;
    for (int src = 0; src < global.world; ++src) {  // the intersection of src's chunk with the needed range
      const std::int64_t begin = std::max(want.s_first, src * brute.local);
      const std::int64_t tokens = std::min(want.row_offset, (src + 1) * brute.local) - begin;
      const auto found = by_pair.find({rank, src});
      const bool expected = src < rank && tokens > 0;
      ASSERT_EQ(found != by_pair.end(), expected) << src << " -> " << rank;
      if (expected) {
        EXPECT_EQ(found->second, (Edge{src, rank, begin, tokens}));
      }
    }
    const RankPlan plan = make_rank_plan(layout, global, rank);
    EXPECT_EQ(plan_guard(plan), "");
    EXPECT_EQ(plan.remote_len, want.back);
    sent.insert(sent.end(), plan.sends.begin(), plan.sends.end());
    received.insert(received.end(), plan.recvs.begin(), plan.recvs.end());
    std::int64_t shared = plan.key_rows;
    for (int dst = rank + 1; dst < global.world; ++dst) {
      const RankRange later = brute.range(dst);
      if (later.back > 0) shared = std::min(shared, std::max<std::int64_t>(later.s_first - want.row_offset, 0));
    }
    EXPECT_EQ(plan.shared_begin, shared);
    for (const Segment& segment : plan.segments) {
      ASSERT_GT(segment.rows(), 0);
      for (std::int32_t row = segment.q_begin; row < segment.q_end; ++row) {
        const std::int64_t global_row = want.row_offset + row;
        EXPECT_EQ(want.s_first + segment.k_begin, brute.start[global_row]);
        EXPECT_EQ(want.s_first + segment.k_begin + (row - segment.q_begin) + segment.keys() - segment.rows(),
                  global_row);
      }
    }
  }
  EXPECT_EQ(global.halo.feasible, feasible);
  // What one side sends is what the other side receives, edge for edge.
  EXPECT_EQ(received, global.edges);
  const auto by_dst = [](const Edge& a, const Edge& b) {
    return std::pair(a.dst, a.src) < std::pair(b.dst, b.src);
  };
  std::sort(sent.begin(), sent.end(), by_dst);
  EXPECT_EQ(sent, received);
}

TEST(Plan, RandomLayoutsMatchTheDefinition) {
  RandomLayouts random(1);
  for (int world = 1; world <= 9; ++world) {
    for (int kind = 0; kind < RandomLayouts::kKinds; ++kind) {
      for (int i = 0; i < 3; ++i) expect_matches_definition(random.next(world, 16 * world + 40, kind));
    }
  }
}

TEST(Plan, EdgesAroundChunkEdges) {
  for (int world = 2; world <= 4; ++world) {
    const std::int64_t chunk = 8, tokens = chunk * world;
    for (std::int64_t edge = 1; edge < tokens; ++edge) {
      for (std::int64_t tail : {0, 1, 7}) {
        if (edge + tail < tokens) expect_matches_definition({"cut", {edge, tokens - edge - tail}, tail, world});
      }
    }
  }
}

TEST(Plan, ManyDocumentsOfOneToken) {
  const DocLayout layout = layout_of(std::vector<std::int64_t>(8192, 1), {.world_size = 8});
  const GlobalPlan global = make_global_plan(layout);
  EXPECT_TRUE(global.edges.empty());
  const RankPlan plan = make_rank_plan(layout, global, 3);
  EXPECT_EQ(plan.segments.size(), 1024u);
  EXPECT_EQ(plan.shared_begin, plan.key_rows);
  EXPECT_EQ(global.area[3], 1024);
}

TEST(Plan, OneDocumentOverAllRanks) {
  const DocLayout layout = layout_of({16}, {.world_size = 4});
  const GlobalPlan global = make_global_plan(layout);
  EXPECT_FALSE(global.halo.feasible);
  const RankPlan plan = make_rank_plan(layout, global, 2);
  EXPECT_EQ(plan.remote_len, 8);
  EXPECT_EQ(plan.remote_segments(), 1);
  EXPECT_EQ(plan.shared_begin, 0);
  EXPECT_EQ(plan.recvs, (std::vector<Edge>{{0, 2, 0, 4}, {1, 2, 4, 4}}));
  EXPECT_EQ(plan.sends, (std::vector<Edge>{{2, 3, 8, 4}}));
  const PathBytes bytes = path_bytes(global, 10);
  EXPECT_EQ(bytes.allgather, 3 * 4 * 4 * 10);
  EXPECT_EQ(bytes.a2a, (4 + 8 + 12) * 10);
  EXPECT_EQ(bytes.halo, bytes.a2a);
}

TEST(Plan, EmptyLayout) {
  const DocLayout layout = layout_of({}, {.world_size = 4});
  const GlobalPlan global = make_global_plan(layout);
  EXPECT_EQ(global.local_len, 0);
  EXPECT_TRUE(global.halo.feasible);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(plan_guard(make_rank_plan(layout, global, rank)), "");
}

TEST(Plan, RectangularAreaCountsVisiblePairs) {
  RandomLayouts random(5);
  for (int i = 0; i < 300; ++i) {
    const test::RectangularCase one = random.next_rectangular(6, 12);
    std::int64_t area = 0;
    for (std::size_t document = 0; document + 1 < one.cu_q.size(); ++document) {
      const std::int64_t q = one.cu_q[document + 1] - one.cu_q[document];
      const std::int64_t k = one.cu_k[document + 1] - one.cu_k[document];
      for (std::int64_t row = 0; row < q; ++row) area += std::max<std::int64_t>(0, row + k - q + 1);
    }
    const DocLayout layout = one.layout();
    const GlobalPlan global = make_global_plan(layout);
    EXPECT_EQ(global.area[0], area);
    const RankPlan plan = make_rank_plan(layout, global, 0);
    EXPECT_EQ(plan_guard(plan), "");
    EXPECT_EQ(plan.segments.size(), static_cast<std::size_t>(layout.documents()));
    EXPECT_EQ(plan.rows, one.cu_q.back() + one.padding);
    EXPECT_EQ(plan.key_rows, one.cu_k.back() + one.padding);
    EXPECT_EQ(plan.meta.cu_k.back(), one.cu_k.back());
  }
}

TEST(Plan, LargestLayoutDoesNotOverflow) {
  const DocLayout layout = layout_of({2147483646}, {.world_size = 1});
  const GlobalPlan global = make_global_plan(layout);
  EXPECT_EQ(global.area[0], std::int64_t{2147483646} * 2147483647 / 2);
  const RankPlan plan = make_rank_plan(layout, global, 0);
  EXPECT_EQ(plan.segments.at(0).q_end, 2147483646);
  EXPECT_EQ(plan_guard(plan), "");
}

TEST(Plan, RankPlanRefusesForeignPlansAndRanks) {
  const DocLayout layout = layout_of({16}, {.world_size = 4});
  const GlobalPlan global = make_global_plan(layout);
  test::expect_error(ErrorCode::invalid_argument, {"rank is 4", "0 to 3"},
                     [&] { make_rank_plan(layout, global, 4); });
  test::expect_error(ErrorCode::invalid_argument, {"rank is -1"}, [&] { make_rank_plan(layout, global, -1); });
  test::expect_error(ErrorCode::invalid_argument, {"world 4", "world 2"},
                     [&] { make_rank_plan(layout_of({16}, {.world_size = 2}), global, 0); });
}

// A document's ranges change nothing for the other documents' segments.
TEST(Plan, ChangingOneDocumentLeavesTheOthers) {
  RandomLayouts random(21);
  for (int i = 0; i < 100; ++i) {
    LayoutCase one = random.next(1, 200, 0);
    if (one.lengths.size() < 2) continue;
    const auto changed =
        static_cast<std::size_t>(random.uniform(0, static_cast<std::int64_t>(one.lengths.size()) - 1));
    LayoutCase other = one;
    other.lengths[changed] += random.uniform(1, 9);
    const RankPlan a = make_rank_plan(one.layout(), make_global_plan(one.layout()), 0);
    const RankPlan b = make_rank_plan(other.layout(), make_global_plan(other.layout()), 0);
    ASSERT_EQ(a.segments.size(), b.segments.size()) << one;
    for (std::size_t s = 0; s < a.segments.size(); ++s) {
      EXPECT_EQ(a.segments[s].rows() == b.segments[s].rows() && a.segments[s].keys() == b.segments[s].keys(),
                s != changed)
          << one;
    }
  }
}

}  // namespace
}  // namespace bdcp::plan
