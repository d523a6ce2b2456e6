#include "comm/kv_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace bdcp::comm {
namespace {

/// Hands out 256-byte aligned pieces of a buffer.
class Carver {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = end_;
    end_ += aligned(bytes);
    return offset;
  }
  static std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

void add_edges(const plan::RankPlan& plan, KvLayout& layout) {
  for (const plan::Edge& edge : plan.sends)
    layout.sends.push_back({edge.dst, edge.begin - plan.range.row_offset, edge.tokens});
  for (const plan::Edge& edge : plan.recvs)
    layout.recvs.push_back({edge.src, edge.begin - plan.range.s_first, edge.tokens});
}

void add_neighbours(const plan::GlobalPlan& global, const plan::RankPlan& plan, KvLayout& layout) {
  require(global.halo.feasible, ErrorCode::internal, "halo exchange of a plan for which it is infeasible");
  const auto rank = static_cast<std::size_t>(plan.rank);
  const std::int64_t from_left = global.halo.recv[rank], to_right = global.halo.send[rank];
  if (to_right > 0) layout.sends.push_back({plan.rank + 1, plan.key_rows - to_right, to_right});
  if (from_left > 0) layout.recvs.push_back({plan.rank - 1, 0, from_left});
}

void lay_out_forward(const plan::GlobalPlan& global, const plan::RankPlan& plan, bool packs, KvLayout& layout) {
  layout.landing_rows = layout.remote_len = plan.remote_len;
  if (layout.path == ExchangePath::allgather) {
    layout.landing_rows = global.local_len * global.world;
    layout.remote_begin = plan.range.s_first;  // the landing is indexed by packed-sequence position
  } else if (layout.path == ExchangePath::halo) {
    add_neighbours(global, plan, layout);
  } else {
    add_edges(plan, layout);
  }
  Carver carver;
  const auto rows = static_cast<std::size_t>(layout.landing_rows);
  carver.take(rows * static_cast<std::size_t>(layout.row_elements_k()) * size_of(layout.dtype));
  layout.landing_v =
      carver.take(rows * static_cast<std::size_t>(layout.row_elements_v()) * size_of(layout.dtype));
  if (packs && !layout.sends.empty()) {
    layout.packed_begin = layout.key_rows;
    for (const EdgeRows& edge : layout.sends) layout.packed_begin = std::min(layout.packed_begin, edge.begin);
    layout.packed_rows = layout.key_rows - layout.packed_begin;
    const auto packed = static_cast<std::size_t>(layout.packed_rows) * size_of(layout.dtype);
    layout.packed_k = carver.take(packed * static_cast<std::size_t>(layout.row_elements_k()));
    layout.packed_v = carver.take(packed * static_cast<std::size_t>(layout.row_elements_v()));
  }
  layout.landing_bytes = carver.end();
}

/// Rows count as bytes of K and V: each comes once, and its partials go once, in the payload's size.
bool fetch_is_longer(const plan::GlobalPlan& global, const KvLayout& layout) {
  if (layout.path != ExchangePath::allgather)
    return false;  // what comes is what goes, and partials are no smaller
  const std::int64_t most = *std::max_element(global.halo.recv.begin(), global.halo.recv.end());  // of a rank
  const std::int64_t gathered = global.local_len * (global.world - 1);
  return gathered * static_cast<std::int64_t>(size_of(layout.dtype)) >
         most * static_cast<std::int64_t>(size_of(layout.payload));
}

void lay_out_backward(const plan::RankPlan& plan, KvLayout& layout) {
  layout.shared_begin = plan.shared_begin;
  layout.shared_rows = plan.key_rows - plan.shared_begin;
  for (const plan::Edge& edge : plan.recvs)
    layout.returns.push_back({edge.src, edge.begin - plan.range.s_first, edge.tokens});
  for (const plan::Edge& edge : plan.sends) {
    require(edge.tokens == layout.shared_rows && edge.begin - plan.range.row_offset == layout.shared_begin,
            ErrorCode::internal, [&] {
              return fmt::format("rank {} returns partials of {} rows from {}; expected are {} from {}",
                                 edge.dst, edge.tokens, edge.begin - plan.range.row_offset, layout.shared_rows,
                                 layout.shared_begin);
            });
    layout.contributors.push_back(edge.dst);
  }
  Carver carver;
  const auto shared = static_cast<std::size_t>(layout.shared_rows);
  const auto remote = static_cast<std::size_t>(layout.remote_len);
  const auto row_k = static_cast<std::size_t>(layout.row_elements_k());
  const auto row_v = static_cast<std::size_t>(layout.row_elements_v());
  const std::size_t wire = size_of(layout.payload);
  layout.shared_dk = carver.take(shared * row_k * sizeof(float));
  layout.shared_dv = carver.take(shared * row_v * sizeof(float));
  layout.remote_dk = carver.take(remote * row_k * wire);
  layout.remote_dv = carver.take(remote * row_v * wire);
  layout.peers_dk_stride = Carver::aligned(shared * row_k * wire);
  layout.peers_dv_stride = Carver::aligned(shared * row_v * wire);
  layout.peers_dk = carver.take(layout.peers_dk_stride * layout.contributors.size());
  layout.peers_dv = carver.take(layout.peers_dv_stride * layout.contributors.size());
  layout.gradient_bytes = carver.end();
}

}  // namespace

KvLayout make_kv_layout(const plan::GlobalPlan& global, const plan::RankPlan& plan, const CallShape& shape,
                        ExchangePath path, bool payload_f32, bool packs) {
  require(path == ExchangePath::allgather || path == ExchangePath::halo || path == ExchangePath::a2a ||
              (path == ExchangePath::local && global.world == 1),
          ErrorCode::internal, [&] {
            return fmt::format("path \"{}\" moves nothing between {} ranks", to_string(path), global.world);
          });
  KvLayout layout;
  layout.path = path;
  layout.heads = shape.heads_kv;
  layout.dim_k = shape.head_dim;
  layout.dim_v = shape.dim_v();
  layout.dtype = shape.dtype;
  layout.payload = payload_f32 ? DType::f32 : shape.dtype;
  layout.key_rows = plan.key_rows;
  layout.moves = !global.edges.empty();
  layout.fetch_is_longer = layout.moves && fetch_is_longer(global, layout);
  lay_out_forward(global, plan, packs, layout);
  lay_out_backward(plan, layout);
  return layout;
}

}  // namespace bdcp::comm
