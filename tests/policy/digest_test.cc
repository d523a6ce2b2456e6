// What ranks compare: generated from the schema, one field at a time.
#include "policy/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"
#include "support/measured_file.h"
#include "support/policy_fields.h"

namespace bdcp::policy {
namespace {

using test::from_code;

TEST(PolicyDigest, EachGroupFieldAloneChangesItAndIsNamedAndNoLocalFieldDoes) {
  const test::ScratchFolder folder;
  const Policy built_in;
  const auto before = group_fields(built_in, {});
  std::vector<std::string> single_valued, locals;
  int groups = 0;
  for (const test::PolicyFieldCase& field : test::policy_field_cases(folder.path())) {
    if (field.alternative.empty()) {
      single_valued.push_back(field.pointer);
      continue;
    }
    const Policy changed = from_code({{field.name, field.alternative}});
    const auto after = group_fields(changed, {});
    ASSERT_EQ(before.size(), after.size());
    std::vector<std::string> differing;
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before[i] != after[i]) differing.push_back(after[i].first);
    if (field.group) {
      EXPECT_THAT(differing, testing::ElementsAre(field.pointer));
      EXPECT_NE(group_digest(changed, {}), group_digest(built_in, {})) << field.pointer;
      ++groups;
    } else {
      EXPECT_THAT(differing, testing::IsEmpty()) << field.pointer;
      EXPECT_EQ(group_digest(changed, {}), group_digest(built_in, {})) << field.pointer;
      locals.push_back(field.pointer);
    }
  }
  EXPECT_THAT(single_valued, testing::ElementsAre("/exchange/balance"));
  EXPECT_EQ(groups + 1 + static_cast<int>(locals.size()), static_cast<int>(built_in.fields().size()));
  EXPECT_THAT(locals,
              testing::UnorderedElementsAre("/kernels/on_miss", "/kernels/cache_dir", "/kernels/seed_dirs",
                                            "/kernels/jobs", "/kernels/tuned", "/log/level"));
}

TEST(PolicyDigest, SpellingAndOriginDoNotMatter) {
  const Policy file =
      test::from_json(R"({"exchange": {"path": "all-to-all"}, "agreement": {"timeout_s": 5.0}})");
  const Policy code = from_code({{"exchange.path", "A2A"}, {"agreement.timeout_s", "5"}});
  EXPECT_EQ(group_fields(file, {}), group_fields(code, {}));
}

TEST(PolicyDigest, GroupsCountOnlyWhereTheyMatch) {
  const Policy policy =
      test::from_json(R"({"groups": [{"match": {"name": "a"}, "set": {"exchange": {"path": "halo"}}}]})");
  EXPECT_NE(group_digest(policy, {"a", 2, 1}), group_digest(Policy(), {"a", 2, 1}));
  EXPECT_EQ(group_digest(policy, {"b", 2, 1}), group_digest(Policy(), {"b", 2, 1}));
}

TEST(PolicyDigest, MeasuredIsComparedByContent) {
  const test::ScratchFolder folder;
  const auto with = [&](const std::string& name, const std::string& text) {
    return from_code({{"exchange.measured", folder.write(name, text)}});
  };
  const Policy one = with("one.json", test::measured_file()),
               same = with("elsewhere/two.json", test::measured_file()),
               other = with("three.json", test::measured_file({.halo_us = 1}));
  EXPECT_NE(one.resolve().exchange.measured, same.resolve().exchange.measured);
  EXPECT_EQ(group_fields(one, {}), group_fields(same, {}));
  EXPECT_NE(group_fields(one, {}), group_fields(other, {}));
  EXPECT_NE(group_digest(one, {}), group_digest(Policy(), {}));
  EXPECT_THAT(test::field_of(one, "/exchange/measured").compared, testing::MatchesRegex("xxh3:[0-9a-f]+"));
}

TEST(PolicyDigest, IsStableAcrossBuilds) {
  // Ranks with different builds compare digests, so the algorithm is part of the protocol.
  EXPECT_EQ(digest({{"/a", "1"}, {"/b", "\"x\""}}), 3099998430557001235u)
      << "XXH3_64bits of 2:/a=1:1;2:/b=3:\"x\";";
  EXPECT_NE(digest({{"/a", "bc"}}), digest({{"/ab", "c"}}));
}

}  // namespace
}  // namespace bdcp::policy
