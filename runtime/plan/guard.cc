// The last check before a launch: every index a kernel consumes, on the host, with the reason in words.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "plan/plan.h"

namespace bdcp::plan {
namespace {

using Offsets = std::span<const std::int32_t>;

std::int32_t length(Offsets cu, std::size_t i) { return cu[i + 1] - cu[i]; }

std::string check_offsets(const char* name, Offsets cu) {
  if (cu[0] != 0) return fmt::format("{} must start at zero, not at {}", name, cu[0]);
  return {};
}

std::string check_increasing(const char* name, Offsets cu) {
  for (std::size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] <= cu[i - 1]) {
      return fmt::format("{} must be strictly increasing, but {}[{}] = {} follows {}", name, name, i, cu[i],
                         cu[i - 1]);
    }
  }
  return {};
}

std::int32_t longest(Offsets cu) {
  std::int32_t out = 0;
  for (std::size_t i = 0; i + 1 < cu.size(); ++i) out = std::max(out, length(cu, i));
  return out;
}

std::string check_edges(const RankPlan& plan) {
  std::int64_t next = plan.range.s_first;
  for (const Edge& edge : plan.recvs) {
    if (edge.dst != plan.rank || edge.tokens <= 0 || edge.begin != next) {
      return fmt::format("receive of {} tokens at {} from rank {} does not continue at {}", edge.tokens,
                         edge.begin, edge.src, next);
    }
    next += edge.tokens;
  }
  if (next != plan.range.s_first + plan.remote_len) {
    return fmt::format("receives end at {}, but remote keys end at {}", next,
                       plan.range.s_first + plan.remote_len);
  }
  for (const Edge& edge : plan.sends) {
    if (edge.src != plan.rank || edge.tokens <= 0 || edge.begin < plan.range.row_offset ||
        edge.begin + edge.tokens > plan.range.row_offset + plan.key_rows) {
      return fmt::format("send of {} tokens at {} to rank {} is outside the rank's keys [{}, {})", edge.tokens,
                         edge.begin, edge.dst, plan.range.row_offset, plan.range.row_offset + plan.key_rows);
    }
  }
  return {};
}

}  // namespace

std::string metadata_guard(const VarlenMeta& meta, std::int64_t query_len, std::int64_t key_len) {
  if (meta.n_real < 0 || meta.n_real > query_len) {
    return fmt::format("n_real = {} is outside query length {}", meta.n_real, query_len);
  }
  if (meta.n_real == 0) return {};
  if (meta.s_first < 0 || meta.s_first > meta.real_end || meta.real_end > key_len) {
    return fmt::format("key range [{}, {}) is outside key length {}", meta.s_first, meta.real_end, key_len);
  }
  const Offsets q = meta.cu_q, k = meta.cu_k;
  if (q.size() < 2) return fmt::format("cu_q has {} entries; at least 2 are needed", q.size());
  if (k.size() < 2) return fmt::format("cu_k has {} entries; at least 2 are needed", k.size());
  if (q.size() != k.size()) {
    return fmt::format("cu_q and cu_k describe {} and {} segments, not the same number", q.size() - 1,
                       k.size() - 1);
  }
  for (auto* check : {&check_offsets, &check_increasing}) {
    if (std::string reason = check("cu_q", q); !reason.empty()) return reason;
    if (std::string reason = check("cu_k", k); !reason.empty()) return reason;
  }
  if (q.back() != meta.n_real) return fmt::format("cu_q ends at {}, not at n_real = {}", q.back(), meta.n_real);
  if (k.back() != meta.real_end - meta.s_first) {
    return fmt::format("cu_k ends at {}, not at real_end - s_first = {}", k.back(),
                       meta.real_end - meta.s_first);
  }
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    const bool ok = i == 0 ? length(k, i) >= length(q, i) : length(k, i) == length(q, i);
    if (!ok) {
      return fmt::format(
          "segment {} has {} rows and {} keys; only the first local document may have more keys than "
          "rows, and none fewer",
          i, length(q, i), length(k, i));
    }
  }
  if (meta.max_q != longest(q))
    return fmt::format("max_q is {}, but the longest segment has {} rows", meta.max_q, longest(q));
  if (meta.max_k != longest(k))
    return fmt::format("max_k is {}, but the longest segment has {} keys", meta.max_k, longest(k));
  return {};
}

std::string plan_guard(const RankPlan& plan) {
  if (plan.range.n_real < 0 || plan.range.n_real > plan.rows) {
    return fmt::format("n_real = {} is outside query length {}", plan.range.n_real, plan.rows);
  }
  if (plan.remote_len < 0 || plan.shared_begin < 0 || plan.shared_begin > plan.key_rows) {
    return fmt::format("remote_len = {} or shared_begin = {} is outside the rank's {} key rows",
                       plan.remote_len, plan.shared_begin, plan.key_rows);
  }
  const std::int64_t keys = plan.remote_len + plan.key_rows;
  std::int32_t row = 0, key = 0;
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    if (segment.q_begin != row || segment.q_end < row || segment.q_end > plan.range.n_real) {
      return fmt::format("segment {} has rows [{}, {}); they must continue at {} and stay below n_real = {}", i,
                         segment.q_begin, segment.q_end, row, plan.range.n_real);
    }
    if (segment.k_begin != key || segment.k_end < key || segment.k_end > keys) {
      return fmt::format("segment {} has keys [{}, {}); they must continue at {} and stay below {}", i,
                         segment.k_begin, segment.k_end, key, keys);
    }
    row = segment.q_end;
    key = segment.k_end;
  }
  if (row != plan.range.n_real)
    return fmt::format("segments end at row {}, not at n_real = {}", row, plan.range.n_real);
  if (plan.square) {
    std::string reason = metadata_guard(plan.meta, plan.rows, plan.range.row_offset + plan.rows);
    if (!reason.empty()) return reason;
  }
  return check_edges(plan);
}

}  // namespace bdcp::plan
