// Outputs against what they must be: the oracle, exact zeros on padding, the same bits again, and poison that
// stays put.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/session.h"
#include "check/oracle.h"

namespace bdcp::bench {

enum class OracleMode {
  automatic,  ///< full where the float64 run on this machine's cores takes seconds, else sampled
  full,       ///< float64 on the host over every row
  sampled     ///< a trusted f32 run over every row, and float64 on the host on sampled rows
};

/// Runs the same problem in f32 on the backend that is trusted for it (reference on a GPU, else host).
using TrustedRun = std::function<Outputs(const Inputs& f32_inputs)>;

struct Checked {
  std::string against;
  std::vector<TensorError> errors;  ///< out, lse and, where gradients were computed, dq, dk, dv
};
Checked check_numbers(const check::Problem& problem, const CallShape& shape, const Inputs& inputs,
                      const Outputs& actual, OracleMode mode, const TrustedRun& trusted);

/// Which tensors of a call must be looked at, in the order of TensorError.
struct Tensors {
  bool forward = true, gradients = false;
};
/// Rows past the last document are exact zeros (LSE -inf).
bool padding_is_zero(const check::Problem& problem, DType dtype, const Outputs& outputs, Tensors which);
/// `with_dq`: false where dQ is not promised to be reproducible.
bool same_bits(const Outputs& a, const Outputs& b, Tensors which, bool with_dq);
/// `clean` and `poisoned` ran on the same inputs but for `document` and the padding.
PoisonResult compare_poisoned(const check::Problem& problem, DType dtype, std::int64_t document,
                              const Outputs& clean, const Outputs& poisoned, Tensors which, bool with_dq);

}  // namespace bdcp::bench
