// The oracle: attention over packed documents in float64, as plainly as it can be written. Shares no code with
// any backend.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bdcp/doc_layout.h"
#include "bdcp/runtime.h"
#include "bdcp/types.h"

namespace bdcp::check {

/// Documents: query rows [cu_q[i], cu_q[i+1]) and key rows [cu_k[i], cu_k[i+1]); rows past the last offset are
/// padding.
struct Problem {
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  std::int64_t rows = 0, key_rows = 0;  ///< of the tensors, padding included
  int heads_q = 1, heads_kv = 1, head_dim = 1, head_dim_v = 1;
  double scale = 1.0;
  double dropout_p = 0.0;
  DropoutState dropout;

  static Problem from(const CallShape& shape, std::vector<std::int64_t> cu_q, std::vector<std::int64_t> cu_k,
                      std::int64_t rows, std::int64_t key_rows);
  /// rows = key_rows = layout.padded_tokens() (rectangular: tokens() and real_keys()).
  static Problem from(const CallShape& shape, const DocLayout& layout);
};

/// Host memory, any dtype and strides. Without dout only the forward half is computed.
struct Inputs {
  ConstTensorView q, k, v;
  std::optional<ConstTensorView> dout;
};

/// Packed: out, dq [rows][heads_q][dim_v or head_dim]; lse [heads_q][rows], natural log, -inf for rows without
/// keys; dk, dv [key_rows][heads_kv][...]. Padding is zero (LSE -inf).
struct Results {
  std::vector<double> out, lse, dq, dk, dv;
};

/// Every row. O(visible pairs); threads inside.
Results oracle(const Problem& problem, const Inputs& inputs);

/// The same with P, dS and the outputs rounded to `dtype` (backward from the rounded O and fp32 LSE), as a
/// kernel of that dtype does; for f32 the sums too are kept in f32. Its largest errors bound a kernel's.
Results oracle_rounded(const Problem& problem, const Inputs& inputs, DType dtype);

/// Sampled rows of a large case: out, dq of `rows` ([rows.size()][heads_q][...]), lse [heads_q][rows.size()],
/// and dk, dv of `key_rows`. dk and dv need every row that sees the key: their LSE and O come from `trusted`
/// (for example an f32 run whose sampled rows have been checked); without it they are computed, which costs the
/// whole document.
struct Samples {
  std::vector<std::int64_t> rows, key_rows;
};
struct Trusted {
  ConstTensorView out;
  ConstLseView lse;
};
Results oracle_rows(const Problem& problem, const Inputs& inputs, const Samples& samples,
                    std::optional<Trusted> trusted = std::nullopt);

}  // namespace bdcp::check
