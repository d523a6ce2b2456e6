// Random inputs of a case, and NaN and Inf where a test wants them.
#pragma once

#include <cstdint>

#include "bench/session.h"
#include "bench/workload.h"
#include "check/oracle.h"

namespace bdcp::bench {

/// Standard normal values (one of 65536 quantiles each) in the shape's dtype; padding rows too. A function of
/// the seed.
Inputs random_inputs(const check::Problem& problem, DType dtype, std::uint64_t seed);

/// Fills all padding rows with NaN, Inf and -Inf.
void poison_padding(Inputs& inputs, const check::Problem& problem, DType dtype);
/// Fills the rows of `document` (its queries in q and dout, its keys in k and v) and all padding rows
/// likewise.
void poison(Inputs& inputs, const check::Problem& problem, DType dtype, std::int64_t document);

/// The same values in f32.
Inputs to_f32(const Inputs& inputs, DType dtype);

/// Host views of [rows, heads, dim] bytes.
check::Inputs views(const Inputs& inputs, const check::Problem& problem, DType dtype);

}  // namespace bdcp::bench
