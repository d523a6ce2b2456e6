// What a rank moves for one path and where it lands: row lists and byte offsets, derived from the plan alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bdcp/types.h"
#include "plan/plan.h"

namespace bdcp::comm {

/// Rows [begin, begin + count) of a tensor, to or from `peer`.
struct EdgeRows {
  int peer = 0;
  std::int64_t begin = 0, count = 0;
};

struct KvLayout {
  ExchangePath path = ExchangePath::allgather;
  int heads = 0, dim_k = 0, dim_v = 0;
  DType dtype = DType::bf16, payload = DType::f32;
  std::int64_t key_rows = 0;
  /// False: no rank needs rows of another, so nobody enters a collective, whatever the path.
  bool moves = false;

  /// Backward: K/V comes in for so much longer than partials of remote rows go back that the part which needs
  /// neither should hide the former. The same on all ranks.
  bool fetch_is_longer = false;

  /// Forward: rows of the local K/V, and of the landing tensors. Both empty for allgather.
  std::vector<EdgeRows> sends, recvs;
  std::int64_t landing_rows = 0, remote_begin = 0, remote_len = 0;
  std::size_t landing_v = 0, landing_bytes = 0;  ///< K lands at offset 0
  /// Where rows [packed_begin, packed_begin + packed_rows) of K/V with gaps are packed before they are sent;
  /// behind the landing rows.
  std::int64_t packed_begin = 0, packed_rows = 0;
  std::size_t packed_k = 0, packed_v = 0;

  /// Backward: rows of remote_dk/dv per earlier rank; and the later ranks whose partials come in. All of these
  /// share the same document, so each sends exactly the rows [shared_begin, key_rows).
  std::vector<EdgeRows> returns;
  std::vector<int> contributors;  ///< ascending
  std::int64_t shared_begin = 0, shared_rows = 0;
  std::size_t shared_dk = 0, shared_dv = 0, remote_dk = 0, remote_dv = 0;
  std::size_t peers_dk = 0, peers_dv = 0;                ///< of the first contributor
  std::size_t peers_dk_stride = 0, peers_dv_stride = 0;  ///< between contributors
  std::size_t gradient_bytes = 0;

  std::int64_t row_elements_k() const { return std::int64_t{heads} * dim_k; }
  std::int64_t row_elements_v() const { return std::int64_t{heads} * dim_v; }
};

/// `packs`: leaves room for packing what is sent. Throws Error(internal) for a path that the plan cannot take.
KvLayout make_kv_layout(const plan::GlobalPlan& global, const plan::RankPlan& plan, const CallShape& shape,
                        ExchangePath path, bool payload_f32, bool packs = false);

}  // namespace bdcp::comm
