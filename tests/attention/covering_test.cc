// The covering cases on the host backend: that the cases are sound, and that their checks can fail.
#include <gtest/gtest.h>

#include <set>

#include "attention/counting.h"
#include "attention/covering_cases.h"

namespace bdcp::test {
namespace {

Outputs run_on_host(const CoveringCase& one, const Data& data, bool zero_out = false) {
  const auto backend = attention::make_host_backend();
  return run_covering(*backend->prepare(one.c.shape, plan_of(one), one.options, {}), one, data, zero_out);
}

TEST(CoveringCases, AreFewAndReachEveryCorner) {
  const std::vector<CoveringCase> cases = covering_cases();
  EXPECT_LE(cases.size(), 260u);
  EXPECT_GE(cases.size(), 192u);
  int poisoned = 0, shared = 0, remote_poisoned = 0;
  std::set<std::string> shapes;
  for (const CoveringCase& one : cases) {
    EXPECT_EQ(plan::plan_guard(plan_of(one)), "") << one.name;
    poisoned += one.poisoned >= 0;
    shared += one.shared_keys > 0 && one.c.shape.backward;
    remote_poisoned += one.poisoned == 0 && one.remote_len > 0;
    shapes.insert(std::to_string(one.c.shape.head_dim) + std::string(to_string(one.c.shape.dtype)));
  }
  EXPECT_GT(poisoned, 40);
  EXPECT_GT(shared, 15);
  EXPECT_GT(remote_poisoned, 5);
  EXPECT_EQ(shapes.size(), 11u);
}

TEST(CoveringCases, HostPasses) {
  const std::vector<CoveringCase> cases = covering_cases();
  for (std::size_t i = 0; i < cases.size(); i += 13) {
    const CoveringCase& one = cases[i];
    SCOPED_TRACE(one.name);
    const Data data = data_of(one, true);
    const Outputs outputs = run_on_host(one, data);
    expect_covering(one, expected_of(one.c, data, one.c.shape.backward), outputs);
    if (one.poisoned >= 0) expect_isolated(one, outputs, run_on_host(one, data_of(one, false)), {});
  }
}

TEST(CountingCases, HostPasses) {
  for (const CoveringCase& one : counting_cases(make_shape(6, 2, 16, DType::f16, 8))) {
    const Data data = counting_data(one);
    expect_counts(one, run_on_host(one, data, true));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace bdcp::test
