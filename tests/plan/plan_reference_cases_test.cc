// The reference's cases about layouts, metadata and plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan.h"
#include "plan/tile_schedule.h"
#include "support/expect_error.h"
#include "support/reference_cases.h"

namespace bdcp::plan {
namespace {

using nlohmann::json;
using test::find_case;
using test::reference_cases;
using Ints = std::vector<std::int64_t>;

DocLayout layout_of_ids(const Ints& ids, int world) {
  return DocLayout::from_doc_ids(ids, {.world_size = world});
}

DocLayout layout_of_lengths(const json& one, int world) {
  return DocLayout::from_lengths(one.at("doc_lens").get<Ints>(),
                                 {.world_size = world, .padding_tokens = one.at("pad").get<std::int64_t>()});
}

/// Visible pairs as the library computes them: rows from segments, keys from their positions.
std::vector<std::string> mask_rows(const DocLayout& layout) {
  std::vector<std::string> out;
  const GlobalPlan global = make_global_plan(layout);
  for (int rank = 0; rank < global.world; ++rank) {
    const RankPlan plan = make_rank_plan(layout, global, rank);
    std::vector<std::string> rows(static_cast<std::size_t>(plan.rows),
                                  std::string(static_cast<std::size_t>(global.tokens), '0'));
    for (const Segment& segment : plan.segments) {
      for (std::int32_t i = 0; i < segment.rows(); ++i) {
        for (std::int32_t j = 0; j <= i + segment.keys() - segment.rows(); ++j) {
          rows[segment.q_begin + i][plan.range.s_first + segment.k_begin + j] = '1';
        }
      }
    }
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

// The reference's dense mask puts padding rows on the diagonal; here they see nothing.
std::vector<std::string> expected_rows(const json& one) {
  auto rows = one.at("expect_rows").get<std::vector<std::string>>();
  const auto ids = one.at("doc_ids").get<Ints>();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (ids[i] == 0) rows[i] = std::string(rows[i].size(), '0');
  }
  return rows;
}

TEST(PlanReferenceCases, Mask) {
  const json& full = find_case(reference_cases().at("mask"), "mask-8x8");
  EXPECT_EQ(mask_rows(layout_of_ids(full.at("doc_ids"), 1)), expected_rows(full));
}

TEST(PlanReferenceCases, MaskOfRanksConcatenated) {
  const json& full = find_case(reference_cases().at("mask"), "mask-8x8");
  const json& sliced = find_case(reference_cases().at("mask"), "mask-concat");
  for (const int world : sliced.at("worlds")) {
    EXPECT_EQ(mask_rows(layout_of_ids(sliced.at("doc_ids"), world)), expected_rows(full)) << world;
  }
}

void expect_meta(const VarlenMeta& meta, const json& expect) {
  SCOPED_TRACE(expect.dump());
  EXPECT_EQ(meta.n_real, expect.at("n_real"));
  if (meta.n_real == 0) return;
  const auto is = [&](const char* name, std::int64_t value) {
    if (expect.contains(name)) {
      EXPECT_EQ(value, expect.at(name).get<std::int64_t>()) << name;
    }
  };
  is("s_first", meta.s_first);
  is("real_end", meta.real_end);
  is("max_q", meta.max_q);
  is("max_k", meta.max_k);
  is("first_q", meta.first_q);
  is("first_k", meta.first_k);
  is("max_tail", meta.max_tail);
  if (expect.contains("cu_q")) {
    EXPECT_EQ(meta.cu_q, expect.at("cu_q").get<std::vector<std::int32_t>>());
  }
  if (expect.contains("cu_k")) {
    EXPECT_EQ(meta.cu_k, expect.at("cu_k").get<std::vector<std::int32_t>>());
  }
}

/// The reference plans any chunk length; a layout of the same world size has chunks of an even length, so odd
/// ones are reached through a world of more ranks.
TEST(PlanReferenceCases, PrecomputeMeta) {
  for (const json& one : reference_cases().at("precompute_meta")) {
    const auto ids = one.at("doc_ids").get<Ints>();
    const std::int64_t local = one.at("local_len"), offset = one.at("row_offset");
    const bool odd = local % 2 != 0;  // meta-allpad: any rank whose chunk is all padding stands for it
    const int world = static_cast<int>(static_cast<std::int64_t>(ids.size()) / (odd ? 2 : local));
    Ints padded = ids;
    if (odd) padded.resize(ids.size() + 2 * static_cast<std::size_t>(world), 0);
    const DocLayout layout = layout_of_ids(padded, world);
    const GlobalPlan global = make_global_plan(layout);
    const int rank = odd ? world - 1 : static_cast<int>(offset / local);
    const VarlenMeta meta = make_rank_plan(layout, global, rank).meta;
    expect_meta(meta, one.at("expect"));
    if (one.contains("expect_derived")) {
      json derived = one.at("expect_derived");
      derived["n_real"] = one.at("expect").at("n_real");
      expect_meta(meta, derived);
    }
  }
}

void expect_plan(const json& one, int world, const json& derived) {
  SCOPED_TRACE(one.dump());
  const DocLayout layout = layout_of_lengths(one, world);
  const GlobalPlan global = make_global_plan(layout);
  EXPECT_EQ(global.local_len, derived.value("local_len", one.value("local_len", global.local_len)));
  EXPECT_EQ(global.halo.feasible, derived.at("use_halo").get<bool>());
  EXPECT_EQ(global.halo.recv, derived.at("recv").get<Ints>());
  EXPECT_EQ(global.halo.send, derived.at("send").get<Ints>());
  std::int64_t longest = 0;
  const json& sent = derived.at("in_splits");
  const json& received = derived.at("out_splits");
  std::vector<Ints> splits(world, Ints(world, 0));
  for (const Edge& edge : global.edges) splits[edge.src][edge.dst] = edge.tokens;
  for (int rank = 0; rank < world; ++rank) {
    const RankRange& range = global.ranks[rank];
    EXPECT_EQ(range.n_real, derived.at("nreal")[rank]);
    EXPECT_EQ(range.s_first, derived.at("s_first")[rank]);
    EXPECT_EQ(range.real_end, derived.at("real_end")[rank]);
    longest = std::max(longest, range.back);
    for (int other = 0; other < world; ++other) {
      // The reference sends a rank its own tokens too; bdcp never does.
      const std::int64_t tokens = splits[rank][other];
      EXPECT_EQ(tokens, rank == other ? 0 : sent[rank][other].get<std::int64_t>());
      EXPECT_EQ(tokens, rank == other ? 0 : received[other][rank].get<std::int64_t>());
    }
    if (derived.contains("meta"))
      expect_meta(make_rank_plan(layout, global, rank).meta, derived.at("meta")[rank]);
  }
  EXPECT_EQ(longest, derived.at("max_halo"));
}

TEST(PlanReferenceCases, KvPlan) {
  for (const json& one : reference_cases().at("kv_plan")) {
    expect_plan(one, one.at("world"), one.at("derived"));
    for (const auto& [name, value] : one.at("expect").items())
      EXPECT_EQ(value, one.at("derived").at(name)) << name;
  }
}

TEST(PlanReferenceCases, A2aPlan) {
  const json& one = find_case(reference_cases().at("a2a_plan"), "a2a-single");
  expect_plan(one, one.at("world"), one.at("derived"));
  const DocLayout layout = layout_of_lengths(one, one.at("world"));
  const GlobalPlan global = make_global_plan(layout);
  for (int rank = 0; rank < global.world; ++rank) {
    const RankPlan plan = make_rank_plan(layout, global, rank);
    std::int64_t tokens = plan.range.n_real;  // own tokens complete the needed range
    for (const Edge& edge : plan.recvs) tokens += edge.tokens;
    EXPECT_EQ(tokens, plan.range.real_end - plan.range.s_first);
  }
}

TEST(PlanReferenceCases, VarlenGpuDerived) {
  for (const json& one : reference_cases().at("varlen_gpu").at("cases"))
    expect_plan(one, one.at("world"), one.at("derived"));
}

TEST(PlanReferenceCases, TwoRankDerived) {
  for (const json& one : reference_cases().at("two_rank").at("scenarios"))
    expect_plan(one, 2, one.at("derived"));
}

TEST(PlanReferenceCases, FlashBoundary) {
  const json& group = reference_cases().at("flash_boundary");
  const std::int64_t local = group.at("local_len");
  ASSERT_EQ(group.at("cases").size(), group.at("n_cases"));
  for (const json& one : group.at("cases")) {
    SCOPED_TRACE(one.dump());
    const std::int64_t first_q = one.at("first_q"), first_k = one.at("first_k"), back = first_k - first_q;
    Ints lengths = {local - back, first_k};
    const std::int64_t segments = one.value("n_tails", std::int64_t{0});
    for (std::int64_t i = 0; i < segments; ++i) {  // split evenly, remainder to the first ones
      const std::int64_t rest = local - first_q;
      lengths.push_back(rest / segments + (i < rest % segments));
    }
    const std::int64_t real = segments ? local : first_q;
    const DocLayout layout =
        DocLayout::from_lengths(lengths, {.world_size = 2, .padding_tokens = local - real});
    const GlobalPlan global = make_global_plan(layout);
    ASSERT_EQ(global.local_len, local);
    EXPECT_TRUE(global.halo.feasible);
    const RankPlan plan = make_rank_plan(layout, global, 1);
    EXPECT_EQ(plan_guard(plan), "");
    EXPECT_EQ(plan.remote_len, back);
    EXPECT_EQ(plan.meta.n_real, real);
    EXPECT_EQ(plan.meta.first_q, first_q);
    EXPECT_EQ(plan.meta.first_k, first_k);
    EXPECT_EQ(static_cast<std::int64_t>(plan.segments.size()), 1 + segments);
    if (segments) {
      EXPECT_EQ(plan.meta.max_tail, one.at("tail_max"));
      EXPECT_EQ(plan.segments.back().rows(), one.at("tail_min"));
    }
  }
}

/// The first segment, the only one with more keys than rows, runs apart from the rest: its tiles are the remote
/// part.
TEST(PlanReferenceCases, FlashGuard) {
  const json& peel = find_case(reference_cases().at("flash_guard"), "fg-peel");
  const std::int64_t first_q = peel.at("first_q"), first_k = peel.at("first_k"), tail = peel.at("max_tail");
  const Ints lengths = {1, first_k, tail};  // rank 0 holds 1 + 5 tokens, rank 1 holds 2 + 4
  const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = 2});
  const RankPlan plan = make_rank_plan(layout, make_global_plan(layout), 1);
  EXPECT_EQ(plan.meta.cu_q, peel.at("cu_q").get<std::vector<std::int32_t>>());
  EXPECT_EQ(plan.meta.cu_k, peel.at("cu_k").get<std::vector<std::int32_t>>());
  const TileSchedule peeled = make_tile_schedule(plan);
  ASSERT_EQ(peeled.tiles.size(), 2u);
  EXPECT_EQ(peeled.local_tiles, 1);
  EXPECT_EQ(peeled.tiles[0].q_end - peeled.tiles[0].q_begin, peel.at("expect_calls")[1].at("q"));
  EXPECT_EQ(peeled.tiles[0].k_end - peeled.tiles[0].k_begin, peel.at("expect_calls")[1].at("k"));
  EXPECT_EQ(peeled.tiles[1].q_end - peeled.tiles[1].q_begin, first_q);
  EXPECT_EQ(peeled.tiles[1].k_end - peeled.tiles[1].k_begin, first_k);

  const json& normal = find_case(reference_cases().at("flash_guard"), "fg-normal");
  const auto cu = normal.at("cu_q").get<Ints>();
  const DocLayout square = DocLayout::from_cu_seqlens(cu);
  const TileSchedule one = make_tile_schedule(make_rank_plan(square, make_global_plan(square), 0));
  ASSERT_EQ(one.tiles.size(), 1u);
  EXPECT_EQ(one.tiles[0].q_end - one.tiles[0].q_begin, normal.at("expect_calls")[0].at("q"));
}

TEST(PlanReferenceCases, PaddingThatIsNoTail) {
  const json& gaps = reference_cases().at("gaps_by_inspection");
  const auto interior = find_case(gaps, "gap-interior-pad").at("input").at("doc_ids").get<Ints>();
  test::expect_error(ErrorCode::invalid_layout, {"doc_ids[1] is 0", "interior padding"},
                     [&] { layout_of_ids(interior, 1); });
  const auto left = find_case(gaps, "gap-left-pad").at("input").at("doc_ids").get<Ints>();
  test::expect_error(ErrorCode::invalid_layout, {"doc_ids[0] is 0", "leading padding"},
                     [&] { layout_of_ids(left, 1); });
}

}  // namespace
}  // namespace bdcp::plan
