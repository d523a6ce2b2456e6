// Inputs whose results count: every logit is zero, so that LSE is ln(visible keys), and gradients are whole
// numbers of visible rows and keys and sums of their places. One key too many or too few in one row is off by
// 1, where random inputs would change that row by less than rounding does.
#pragma once

#include <vector>

#include "attention/covering_cases.h"

namespace bdcp::test {

/// Layouts around every tile size, tricky and random ones, local and remote. The shape's dtype must be f16 (it
/// holds whole numbers up to 2048), its dims at least 8.
std::vector<CoveringCase> counting_cases(CallShape shape);
Data counting_data(const CoveringCase& one);
/// `outputs` of run_covering(..., zero_out = true). A row with a single key may have dS = 0.
void expect_counts(const CoveringCase& one, const Outputs& outputs);

}  // namespace bdcp::test
