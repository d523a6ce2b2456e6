// Measurements as JSON lines or as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bdcp/decision.h"
#include "bdcp/types.h"
#include "bench/session.h"
#include "bench/workload.h"

namespace bdcp::bench {

/// One tensor against its expectation. A figure that is not finite fails.
struct TensorError {
  std::string name;      ///< out, lse, dq, dk, dv
  double max = 0;        ///< largest absolute difference
  double rel_l2 = 0;     ///< of the difference, relative to the expectation
  double max_limit = 0;  ///< what passes; infinite where the limit does not apply
  double rel_l2_limit = 0;
  double worst_row = 0;  ///< error of the worst row (one token and head), as a share of what a row may have
  bool pass = false;
};

struct CheckResult {
  std::string against;  ///< what the expectation is, for people
  std::vector<TensorError> errors;
  bool padding_zero = true;      ///< padding rows are exact zeros with LSE -inf
  bool repeat_identical = true;  ///< two runs gave the same bits (dQ counts where it must be reproducible)
  bool pass() const;
};

struct PoisonResult {
  std::int64_t document = 0;
  std::int64_t rows_changed = 0;   ///< rows of other documents, over all tensors, that differ by any bit
  bool padding_zero = true;        ///< as in CheckResult, with NaN and Inf in the padding of the inputs
  bool document_keeps_nan = true;  ///< the poisoned document's own output rows are NaN
  bool dq_compared_bitwise =
      true;  ///< false: dQ is not reproducible in this mode, so it was only searched for NaN and Inf
  bool pass() const { return rows_changed == 0 && padding_zero && document_keeps_nan; }
};

struct Measurement {
  Direction mode = Direction::forward;
  const Workload* workload = nullptr;
  CallShape shape;
  int world = 1, iters = 0;
  bool deterministic = false;
  std::uint64_t seed = 0;
  std::string device;
  Decision decision;
  std::optional<Timing> timing;
  std::optional<double> begin_step_us;
  std::optional<CheckResult> check;
  std::optional<PoisonResult> poison;
  bool pass() const;
};

/// One JSON object on one line; field names of the peers' figures, plus ours.
std::string to_json_line(const Measurement& measurement);
std::string to_text(const Measurement& measurement);

}  // namespace bdcp::bench
