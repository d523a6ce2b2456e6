// check/numbers.h as GoogleTest assertions.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "check/numbers.h"

namespace bdcp::test {

/// Passes if `actual` is within the limits of its dtype; see check::why_not.
inline ::testing::AssertionResult numbers_pass(check::Quantity quantity, DType dtype,
                                               const std::vector<double>& actual,
                                               const std::vector<double>& expected,
                                               const std::vector<double>* rounded = nullptr) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " elements, expected " << expected.size();
  const double rounded_max = rounded ? check::compare(*rounded, expected).max : -1;
  const std::string why = check::why_not(quantity, dtype, check::compare(actual, expected), rounded_max);
  return why.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << why;
}

}  // namespace bdcp::test
