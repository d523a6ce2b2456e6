// "Numbers that pass": the error metric of bdcp's checks and its limits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bdcp/types.h"

namespace bdcp::check {

/// One element of a tensor of any dtype as float64, and the nearest value of a dtype (ties to even).
double load(const void* data, DType dtype, std::int64_t index);
void store(void* data, DType dtype, std::int64_t index, double value);
double round_to(DType dtype, double value);

/// A view's elements in [token][head][dim] order, an LSE view's in [head][token] order. Host memory.
std::vector<double> to_doubles(ConstTensorView view);
std::vector<double> to_doubles(ConstLseView view);

/// max: largest absolute error. rel_l2: |actual - expected| / max(|expected|, 1e-3 * sqrt(elements)).
/// Equal infinities and pairs of NaN count as equal; any other non-finite difference makes both infinite.
struct Errors {
  double max = 0, rel_l2 = 0;
  double largest = 0;  ///< largest finite |expected|
};
Errors compare(std::span<const double> actual, std::span<const double> expected);

enum class Quantity { out, lse, gradient };

/// Largest allowed rel_l2 of out and gradients, or absolute error of LSE.
double limit(Quantity quantity, DType dtype);

/// Empty if `errors` pass. `rounded_max` is the largest error of a host run that rounds P, dS and outputs to
/// the dtype (see oracle.h); no element may be further off than twice that. Where that run is exact by luck
/// (single keys, where P is 1), half a unit in the last place of the largest element stands in for it.
/// Negative: not checked (LSE never uses it).
std::string why_not(Quantity quantity, DType dtype, Errors errors, double rounded_max = -1);

/// The largest error of a single row of `width` elements, as a share of what one row may have (above 1: too
/// much). The figures of a whole tensor hide one row with a key too many or too few. A row may be off by twice
/// the tensor's relative limit, plus six times the most that the rounded run is off in that row and the eight
/// on either side, as one row's rounding errors may cancel by luck. Without a rounded run, a row that is
/// smaller than those around it is held to their size. An LSE (one element a row) may be off by 5e-5 of itself,
/// or of 1 if that is more. Rows that hold a non-finite number are left to compare().
struct RowError {
  double share = 0;
  std::int64_t row = -1;  ///< index of the worst row
};
RowError compare_rows(Quantity quantity, DType dtype, std::span<const double> actual,
                      std::span<const double> expected, std::int64_t width,
                      std::span<const double> rounded = {});

}  // namespace bdcp::check
