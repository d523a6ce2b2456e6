// A packed K/V over several ranks, what every rank must receive, and what its summed gradients must be.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bdcp/doc_layout.h"
#include "comm/kv_exchange.h"
#include "plan/plan.h"
#include "support/tensors.h"

namespace bdcp::test {

struct KvWorld {
  plan::GlobalPlan global;
  std::vector<plan::RankPlan> ranks;
  CallShape shape;
  bool payload_f32 = true;
  HostTensor k, v;                         ///< the whole sequence, packed
  std::vector<HostTensor> part_k, part_v;  ///< dK/dV partials by rank: rows [s_first, end of its chunk)

  KvWorld(const DocLayout& layout, const CallShape& call_shape, bool wire_f32, std::uint64_t seed)
      : global(plan::make_global_plan(layout)), shape(call_shape), payload_f32(wire_f32) {
    const std::int64_t tokens = global.local_len * global.world;
    k = HostTensor(shape.dtype, tokens, shape.heads_kv, shape.head_dim).randomize(seed);
    v = HostTensor(shape.dtype, tokens, shape.heads_kv, shape.dim_v()).randomize(seed + 1);
    for (int rank = 0; rank < global.world; ++rank) {
      ranks.push_back(plan::make_rank_plan(layout, global, rank));
      const std::int64_t rows = ranks.back().remote_len + global.local_len;
      const std::uint64_t own = seed + 10 + 2 * static_cast<std::uint64_t>(rank);
      part_k.push_back(HostTensor(DType::f32, rows, shape.heads_kv, shape.head_dim).randomize(own));
      part_v.push_back(HostTensor(DType::f32, rows, shape.heads_kv, shape.dim_v()).randomize(own + 1));
    }
  }

  DType wire() const { return payload_f32 ? DType::f32 : shape.dtype; }
  std::vector<ExchangePath> paths() const {
    std::vector<ExchangePath> all{ExchangePath::allgather, ExchangePath::a2a};
    if (global.halo.feasible) all.push_back(ExchangePath::halo);
    return all;
  }
  comm::KvExchangeOptions options(ExchangePath path) const {
    comm::KvExchangeOptions result;
    result.path = path;
    result.payload_f32 = payload_f32;
    return result;
  }

  /// Rows [begin, begin + out.tokens()) of `from`, converted.
  static void copy_rows(const HostTensor& from, std::int64_t begin, HostTensor& out) {
    for (std::int64_t t = 0; t < out.tokens(); ++t)
      for (std::int64_t h = 0; h < out.heads(); ++h)
        for (std::int64_t d = 0; d < out.dim(); ++d) out.set(t, h, d, from.at(begin + t, h, d));
  }
  /// A rank's chunk of `whole` in any memory order.
  HostTensor chunk(const HostTensor& whole, int rank,
                   HostTensor::Order order = HostTensor::Order::packed) const {
    HostTensor out(whole.dtype(), global.local_len, whole.heads(), whole.dim(), order);
    copy_rows(whole, at(rank).range.row_offset, out);
    return out;
  }
  HostTensor remote(const HostTensor& whole, int rank) const {
    HostTensor out(whole.dtype(), at(rank).remote_len, whole.heads(), whole.dim());
    copy_rows(whole, at(rank).range.s_first, out);
    return out;
  }
  /// Rank's rows >= shared_begin of its own f32 contribution, and its remote rows on the wire.
  HostTensor shared(const HostTensor& part, int rank) const {
    HostTensor out(DType::f32, at(rank).key_rows - at(rank).shared_begin, part.heads(), part.dim());
    copy_rows(part, at(rank).remote_len + at(rank).shared_begin, out);
    return out;
  }
  HostTensor outgoing(const HostTensor& part, int rank) const {
    HostTensor out(wire(), at(rank).remote_len, part.heads(), part.dim());
    copy_rows(part, 0, out);
    return out;
  }
  /// The definition: own rows plus what each later rank that needs them contributes, ascending, in f32.
  HostTensor expected(const std::vector<HostTensor>& parts, int rank) const {
    const plan::RankPlan& mine = at(rank);
    const HostTensor& own = parts[static_cast<std::size_t>(rank)];
    HostTensor out(shape.dtype, mine.key_rows - mine.shared_begin, own.heads(), own.dim());
    std::vector<HostTensor> wires;
    for (int r = 0; r < global.world; ++r) wires.push_back(outgoing(parts[static_cast<std::size_t>(r)], r));
    for (std::int64_t t = 0; t < out.tokens(); ++t) {
      const std::int64_t token = mine.range.row_offset + mine.shared_begin + t;
      for (std::int64_t h = 0; h < out.heads(); ++h)
        for (std::int64_t d = 0; d < out.dim(); ++d) {
          float sum = static_cast<float>(own.at(mine.remote_len + mine.shared_begin + t, h, d));
          for (int r = rank + 1; r < global.world; ++r)
            if (at(r).remote_len > 0 && token >= at(r).range.s_first)
              sum +=
                  static_cast<float>(wires[static_cast<std::size_t>(r)].at(token - at(r).range.s_first, h, d));
          out.set(t, h, d, static_cast<double>(sum));
        }
    }
    return out;
  }
  const plan::RankPlan& at(int rank) const { return ranks[static_cast<std::size_t>(rank)]; }
};

inline void copy_view(TensorView to, const HostTensor& from) {
  std::memcpy(to.data, from.view().data,
              static_cast<std::size_t>(to.tokens * to.heads * to.dim) * size_of(to.dtype));
}
inline bool same_view(ConstTensorView view, const HostTensor& expected) {
  const std::size_t bytes = static_cast<std::size_t>(view.tokens * view.heads * view.dim) * size_of(view.dtype);
  return view.tokens == expected.tokens() && view.heads == expected.heads() && view.dim == expected.dim() &&
         view.dtype == expected.dtype() && view.contiguous() &&
         (bytes == 0 || std::memcmp(view.data, expected.view().data, bytes) == 0);
}

}  // namespace bdcp::test
