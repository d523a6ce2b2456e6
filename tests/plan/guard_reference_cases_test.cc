// The reference's cases about the metadata guard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "plan/plan.h"
#include "support/reference_cases.h"

namespace bdcp::plan {
namespace {

using nlohmann::json;
using test::reference_cases;

VarlenMeta meta_of(const json& in) {
  VarlenMeta meta;
  meta.n_real = in.value("n_real", std::int64_t{0});
  meta.s_first = in.value("s_first", std::int64_t{0});
  meta.real_end = in.value("real_end", std::int64_t{0});
  meta.cu_q = in.value("cu_q", std::vector<std::int32_t>{});
  meta.cu_k = in.value("cu_k", std::vector<std::int32_t>{});
  meta.max_q = in.value("max_q", 0);
  meta.max_k = in.value("max_k", 0);
  return meta;
}

TEST(PlanReferenceCases, MetadataGuard) {
  int checked = 0;
  for (const json& one : reference_cases().at("metadata_guard")) {
    if (!one.contains("meta")) continue;
    SCOPED_TRACE(one.dump());
    const std::string reason = metadata_guard(meta_of(one.at("meta")), one.at("query_len"), one.at("key_len"));
    if (one.at("expect_reason_contains").is_null()) {
      EXPECT_EQ(reason, "");
    } else {
      EXPECT_THAT(reason, testing::HasSubstr(one.at("expect_reason_contains").get<std::string>()));
    }
    ++checked;
  }
  EXPECT_EQ(checked, 8);
}

// What the reference checks about tensors at run time, the types of VarlenMeta say at compile time; the number
// of entries is left for the guard.
TEST(PlanReferenceCases, GuardTypes) {
  static_assert(std::is_same_v<decltype(VarlenMeta::cu_q), std::vector<std::int32_t>>);
  static_assert(std::is_same_v<decltype(VarlenMeta::cu_k), std::vector<std::int32_t>>);
  static_assert(std::is_integral_v<decltype(VarlenMeta::n_real)> &&
                std::is_integral_v<decltype(VarlenMeta::max_q)>);
  VarlenMeta meta;
  meta.n_real = meta.real_end = 1;
  EXPECT_THAT(metadata_guard(meta, 1, 1), testing::HasSubstr("cu_q has 1 entries"));
}

/// Everything is wrong at once; repaired in the order of the reference's checks, each reason is the next one's.
TEST(PlanReferenceCases, GuardOrder) {
  VarlenMeta meta;
  meta.n_real = 9;
  meta.s_first = -1;
  meta.real_end = 8;
  meta.cu_q = {1};
  meta.cu_k = {1, 0};
  meta.max_q = meta.max_k = 99;
  const auto expect = [&](const char* words) {
    EXPECT_THAT(metadata_guard(meta, 8, 8), testing::HasSubstr(words));
  };
  expect("is outside query length");
  meta.n_real = 0;
  EXPECT_EQ(metadata_guard(meta, 8, 8), "");  // nothing real: nothing else matters
  meta.n_real = 6;
  expect("is outside key length");
  meta.s_first = 0;
  expect("cu_q has 1 entries");
  meta.cu_q = {1, 0, 0};
  expect("segments, not the same number");
  meta.cu_k = {1, 0, 0};
  expect("cu_q must start at zero");
  meta.cu_q = {0, 0, 5};
  expect("cu_k must start at zero");
  meta.cu_k = {0, 0, 5};
  expect("cu_q must be strictly increasing");
  meta.cu_q = {0, 3, 5};
  expect("cu_k must be strictly increasing");
  meta.cu_k = {0, 2, 7};
  expect("cu_q ends at 5");
  meta.n_real = 5;
  expect("cu_k ends at 7");
  meta.cu_k = {0, 2, 8};
  expect("only the first local document");
  meta.cu_k = {0, 6, 8};
  expect("max_q is 99");
  meta.max_q = 3;
  expect("max_k is 99");
  meta.max_k = 6;
  EXPECT_EQ(metadata_guard(meta, 8, 8), "");
}

}  // namespace
}  // namespace bdcp::plan
