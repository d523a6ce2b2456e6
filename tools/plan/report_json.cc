#include <nlohmann/json.hpp>

#include "explain.h"

namespace bdcp::tools {
namespace {

using json = nlohmann::ordered_json;

/// Matrices beyond this world size would be mostly zeros.
constexpr int kMaxMatrixWorld = 64;

json rank_json(const plan::RankPlan& plan, std::int64_t area) {
  const plan::VarlenMeta& meta = plan.meta;
  return {{"rank", plan.rank},
          {"row_offset", plan.range.row_offset},
          {"n_real", plan.range.n_real},
          {"s_first", plan.range.s_first},
          {"real_end", plan.range.real_end},
          {"back", plan.range.back},
          {"cu_q", meta.cu_q},
          {"cu_k", meta.cu_k},
          {"max_q", meta.max_q},
          {"max_k", meta.max_k},
          {"first_q", meta.first_q},
          {"first_k", meta.first_k},
          {"max_tail", meta.max_tail},
          {"area", area}};
}

json a2a_json(const plan::GlobalPlan& global) {
  if (global.world > kMaxMatrixWorld) {
    json edges = json::array();
    for (const plan::Edge& edge : global.edges) edges.push_back({edge.src, edge.dst, edge.tokens});
    return edges;
  }
  const auto world = static_cast<std::size_t>(global.world);
  std::vector<std::vector<std::int64_t>> in(world, std::vector<std::int64_t>(world, 0)), out = in;
  for (const plan::Edge& edge : global.edges) in[edge.src][edge.dst] = out[edge.dst][edge.src] = edge.tokens;
  return {{"in_splits", in}, {"out_splits", out}};
}

json decision_json(const Explanation& explanation) {
  const Decision& decision = explanation.decision;
  json downgrades = json::array();
  for (std::size_t i = 0; i < decision.downgrades.size(); ++i) {
    const Downgrade& downgrade = decision.downgrades[i];
    downgrades.push_back({{"from", downgrade.from},
                          {"to", downgrade.to},
                          {"code", downgrade.code},
                          {"rank", downgrade.rank},
                          {"text", downgrade.text},
                          {"action", explanation.actions[i]}});
  }
  return {{"requested", to_string(decision.requested_path)},
          {"path", to_string(decision.path)},
          {"reason", decision.reason},
          {"backend_requested", to_string(decision.requested_backend)},
          {"backend", to_string(decision.backend)},
          {"downgrades", downgrades}};
}

}  // namespace

std::string to_json_text(const Explanation& explanation) {
  const DocLayout& layout = explanation.layout;
  const plan::GlobalPlan& global = explanation.global;
  json ranks = json::array();
  for (const plan::RankPlan& plan : explanation.ranks) ranks.push_back(rank_json(plan, global.area[plan.rank]));
  const json document = {
      {"tokens", layout.tokens()},
      {"padded", layout.padded_tokens()},
      {"real", layout.real_tokens()},
      {"documents", layout.documents()},
      {"world", global.world},
      {"local_len", global.local_len},
      {"packed_cu_seqlens", layout.packed_cu_seqlens()},
      {"ranks", ranks},
      {"halo", {{"feasible", global.halo.feasible}, {"recv", global.halo.recv}, {"send", global.halo.send}}},
      {"a2a", a2a_json(global)},
      {"balance", {{"max_over_mean", explanation.max_over_mean}}},
      {"bytes",
       {{"allgather", explanation.bytes.allgather},
        {"halo", explanation.bytes.halo},
        {"a2a", explanation.bytes.a2a}}},
      {"decision", decision_json(explanation)},
      {"assumptions", explanation.assumptions}};
  return document.dump() + "\n";
}

}  // namespace bdcp::tools
