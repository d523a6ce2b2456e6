#include "attention/reference_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "attention/kernel_tensor.h"
#include "attention/philox.h"
#include "base/check.h"
#include "plan/cost_order.h"

namespace bdcp::attention {
namespace {

using Index = std::int64_t;

struct Costed {
  kernel::ReferenceItem item;
  Index cost;
};

// Blocks of [begin, end); cost(begin, end) decides the order.
template <class Cost>
void cut(std::vector<Costed>& out, int segment, Index begin, Index end, const Cost& cost) {
  for (Index i = begin; i < end; i += kReferenceRows) {
    const Index stop = std::min(end, i + kReferenceRows);
    out.push_back({{segment, static_cast<int>(i), static_cast<int>(stop)}, cost(i, stop)});
  }
}

std::vector<kernel::ReferenceItem> costliest_first(std::vector<Costed> items) {
  plan::sort_costliest_first(items, [](const Costed& x) { return x.cost; });
  std::vector<kernel::ReferenceItem> sorted;
  sorted.reserve(items.size());
  for (const Costed& x : items) sorted.push_back(x.item);
  return sorted;
}

kernel::DropoutArgs dropout_args(const CallShape& shape, const DropoutState& state, Index q_offset,
                                 Index k_offset) {
  kernel::DropoutArgs args{};
  args.seed_low = static_cast<unsigned>(state.seed);
  args.seed_high = static_cast<unsigned>(state.seed >> 32);
  args.offset = static_cast<unsigned>(state.offset);
  args.threshold = dropout_threshold(shape.dropout_p);
  args.keep_scale = static_cast<float>(1.0 / (1.0 - shape.dropout_p));
  args.q_offset = q_offset;
  args.k_offset = k_offset;
  return args;
}

}  // namespace

ReferenceWork make_reference_work(const plan::RankPlan& plan, const CallShape& shape) {
  const Index most = std::numeric_limits<int>::max(), positions = plan.remote_len + plan.key_rows;
  require(positions <= most && plan.rows <= most, ErrorCode::unsupported, [&] {
    return fmt::format("{} rows and {} key positions on one rank, allowed are {} of each", plan.rows, positions,
                       most);
  });
  ReferenceWork work;
  std::vector<Costed> rows[2], keys[2];
  Index rows_end = 0, keys_end = plan.remote_len;
  for (int s = 0; s < static_cast<int>(plan.segments.size()); ++s) {
    const plan::Segment& segment = plan.segments[s];
    work.segments.push_back({segment.q_begin, segment.q_end, segment.k_begin, segment.k_end});
    const int part = s < plan.remote_segments() ? 1 : 0;
    const Index shift = Index{segment.keys()} - segment.rows();
    cut(rows[part], s, segment.q_begin, segment.q_end,
        [&](Index, Index end) { return std::max<Index>(0, end - segment.q_begin + shift); });
    cut(keys[part], s, segment.k_begin, segment.k_end, [&](Index begin, Index) {
      return segment.rows() - std::max<Index>(0, begin - segment.k_begin - shift);
    });
    rows_end = std::max<Index>(rows_end, segment.q_end);
    keys_end = std::max<Index>(keys_end, segment.k_end);
  }
  const auto free = [](Index, Index) { return Index{0}; };
  cut(rows[0], -1, rows_end, plan.rows, free);
  cut(keys[0], -1, keys_end, positions, free);
  const auto blocks =
      static_cast<Index>(std::max({rows[0].size(), rows[1].size(), keys[0].size(), keys[1].size()}));
  require(blocks * shape.heads_q <= most, ErrorCode::unsupported, [&] {
    return fmt::format("{} blocks of rows for {} heads are more than {} in one launch", blocks, shape.heads_q,
                       most);
  });
  work.rows = {costliest_first(std::move(rows[0])), costliest_first(std::move(rows[1]))};
  work.keys = {costliest_first(std::move(keys[0])), costliest_first(std::move(keys[1]))};
  return work;
}

kernel::ReferenceForwardArgs reference_args(const CallShape& shape, const plan::RankPlan& plan,
                                            const ForwardCall& call) {
  kernel::ReferenceForwardArgs args{};
  args.q = to_kernel(call.q);
  args.k = to_kernel(call.k);
  args.v = to_kernel(call.v);
  args.remote_k = to_kernel(call.remote_k);
  args.remote_v = to_kernel(call.remote_v);
  args.out = to_kernel(call.out);
  args.lse = call.lse.data;
  args.lse_stride = call.lse.head_stride;
  args.remote_len = plan.remote_len;
  args.scale = static_cast<float>(shape.softmax_scale());
  args.heads_q = shape.heads_q;
  args.dropout = dropout_args(shape, call.dropout, call.global_q_offset, call.global_k_offset);
  return args;
}

kernel::ReferenceBackwardArgs reference_args(const CallShape& shape, const plan::RankPlan& plan,
                                             const BackwardCall& call) {
  kernel::ReferenceBackwardArgs args{};
  args.q = to_kernel(call.q);
  args.k = to_kernel(call.k);
  args.v = to_kernel(call.v);
  args.remote_k = to_kernel(call.remote_k);
  args.remote_v = to_kernel(call.remote_v);
  args.out = to_kernel(call.out);
  args.dout = to_kernel(call.dout);
  args.dq = to_kernel(call.dq);
  args.dk = to_kernel(call.dk);
  args.dv = to_kernel(call.dv);
  args.shared_dk = to_kernel(call.shared_dk);
  args.shared_dv = to_kernel(call.shared_dv);
  args.remote_dk = to_kernel(call.remote_dk);
  args.remote_dv = to_kernel(call.remote_dv);
  args.lse = call.lse.data;
  args.lse_stride = call.lse.head_stride;
  args.delta = static_cast<float*>(call.workspace.data);
  args.delta_stride = plan.rows;
  args.remote_len = plan.remote_len;
  args.shared_begin = plan.shared_begin;
  args.scale = static_cast<float>(shape.softmax_scale());
  args.heads_q = shape.heads_q;
  args.heads_kv = shape.heads_kv;
  args.dropout = dropout_args(shape, call.dropout, call.global_q_offset, call.global_k_offset);
  return args;
}

}  // namespace bdcp::attention
