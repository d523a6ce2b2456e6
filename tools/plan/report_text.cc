#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "explain.h"

namespace bdcp::tools {
namespace {

/// Long lists show their ends.
constexpr std::size_t kHead = 6, kTail = 2;

template <class Value>
std::string list_text(std::span<const Value> values) {
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool cut = values.size() > kHead + kTail + 1;
    if (cut && i == kHead) {
      out += " ..";
      i = values.size() - kTail;
    }
    out += fmt::format("{}{}", i ? " " : "", values[i]);
  }
  if (values.size() > kHead + kTail + 1) out += fmt::format(" ({} entries)", values.size());
  return out;
}

std::string bytes_text(std::int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, units[unit]);
}

void add_ranks(const Explanation& explanation, std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "{:>5} {:>10} {:>9} {:>10} {:>10} {:>9} {:>9} {:>8} {:>14}\n", "rank", "rows from", "real",
                 "keys from", "keys to", "back", "documents", "longest", "visible pairs");
  const std::size_t world = explanation.ranks.size();
  for (std::size_t i = 0; i < world; ++i) {
    if (world > 24 && i == 16) {
      fmt::format_to(to, "{:>5}  ({} more)\n", "..", world - 20);
      i = world - 4;
    }
    const plan::RankPlan& plan = explanation.ranks[i];
    fmt::format_to(to, "{:>5} {:>10} {:>9} {:>10} {:>10} {:>9} {:>9} {:>8} {:>14}\n", plan.rank,
                   plan.range.row_offset, plan.range.n_real, plan.range.s_first, plan.range.real_end,
                   plan.range.back, plan.segments.size(), plan.meta.max_k, explanation.global.area[i]);
  }
}

void add_edges(const Explanation& explanation, std::string& out) {
  const auto to = std::back_inserter(out);
  const std::vector<plan::Edge>& edges = explanation.global.edges;
  if (edges.empty()) return;
  fmt::format_to(to, "  edges     ");
  const std::size_t shown = std::min<std::size_t>(edges.size(), 8);
  for (std::size_t i = 0; i < shown; ++i) {
    fmt::format_to(to, "{}{}->{}: {}", i ? ", " : "", edges[i].src, edges[i].dst, edges[i].tokens);
  }
  fmt::format_to(to, "{} (tokens)\n", shown < edges.size() ? fmt::format(", .. {} in all", edges.size()) : "");
}

}  // namespace

std::string to_text(const Explanation& explanation) {
  const DocLayout& layout = explanation.layout;
  const plan::GlobalPlan& global = explanation.global;
  const Decision& decision = explanation.decision;
  std::string out;
  const auto to = std::back_inserter(out);
  const std::vector<std::int64_t> boundaries = layout.packed_cu_seqlens();
  fmt::format_to(to,
                 "layout\n  documents {}{}\n  tokens    {} real, {} given, {} padded; {} on each of {} ranks\n",
                 layout.documents(), layout.square() ? "" : " (rectangular)", layout.real_tokens(),
                 layout.tokens(), layout.padded_tokens(), global.local_len, global.world);
  fmt::format_to(to, "  edges at  {}\nranks\n", list_text<std::int64_t>(boundaries));
  add_ranks(explanation, out);
  fmt::format_to(to, "  balance   {:.3f} (most visible pairs of a rank over the mean)\n",
                 explanation.max_over_mean);
  if (global.world > 1) {
    fmt::format_to(to, "exchange\n  halo      {}; receives {}\n",
                   global.halo.feasible ? "feasible" : "not feasible",
                   list_text<std::int64_t>(global.halo.recv));
    add_edges(explanation, out);
    fmt::format_to(to, "  forward   allgather {}, halo {}, a2a {} (K and V received, all ranks)\n",
                   bytes_text(explanation.bytes.allgather), bytes_text(explanation.bytes.halo),
                   bytes_text(explanation.bytes.a2a));
  }
  fmt::format_to(to, "decision\n  path      {} (requested {}): {}\n  backend   {} (requested {})\n",
                 to_string(decision.path), to_string(decision.requested_path), decision.reason,
                 to_string(decision.backend), to_string(decision.requested_backend));
  for (std::size_t i = 0; i < decision.downgrades.size(); ++i) {
    const Downgrade& downgrade = decision.downgrades[i];
    fmt::format_to(to, "  downgrade {} -> {} [{}, policy: {}] {}\n", downgrade.from, downgrade.to,
                   downgrade.code, explanation.actions[i], downgrade.text);
  }
  for (const std::string& assumption : explanation.assumptions)
    fmt::format_to(to, "  assumed   {}\n", assumption);
  return out;
}

}  // namespace bdcp::tools
