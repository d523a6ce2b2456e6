// Every error of a policy document names its origin, the JSON pointer, the value, and what is allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"

namespace bdcp {
namespace {

using test::error_of;
using test::from_json;
using testing::AllOf;
using testing::HasSubstr;

struct ErrorCase {
  const char* name;
  const char* json;
  std::vector<std::string> says;
};
class PolicyErrors : public testing::TestWithParam<ErrorCase> {};
TEST_P(PolicyErrors, SayWhereWhatAndWhatIsAllowed) {
  const std::string message = error_of([] { from_json(GetParam().json); });
  EXPECT_THAT(message, HasSubstr("policy json: "));
  for (const std::string& part : GetParam().says) EXPECT_THAT(message, HasSubstr(part));
}
INSTANTIATE_TEST_SUITE_P(
    Documents, PolicyErrors,
    testing::Values(
        ErrorCase{"enum",
                  R"({"exchange": {"transport": "ncl"}})",
                  {"/exchange/transport: \"ncl\" is not allowed", "did you mean \"nccl\"?",
                   "allowed: \"auto\", \"nccl\", \"copy_engine\""}},
        ErrorCase{"synonym_field",
                  R"({"exchange": {"path": "ring"}})",
                  {"/exchange/path: \"ring\"", "allowed: \"auto\", \"allgather\", \"halo\", \"a2a\""}},
        ErrorCase{"local_is_no_request", R"({"exchange": {"path": "local"}})", {"/exchange/path: \"local\""}},
        ErrorCase{"type",
                  R"({"attention": {"sm_margin": "4"}})",
                  {"/attention/sm_margin: \"4\"", "allowed: an integer >= 0 and <= 1024"}},
        ErrorCase{
            "fraction", R"({"attention": {"sm_margin": 1.5}})", {"/attention/sm_margin: 1.5", "an integer"}},
        ErrorCase{"below",
                  R"({"exchange": {"landing_slots": 1}})",
                  {"/exchange/landing_slots: 1", "allowed: an integer >= 2 and <= 64"}},
        ErrorCase{"above", R"({"kernels": {"jobs": 99999999999}})", {"/kernels/jobs: 99999999999", "<= 1024"}},
        ErrorCase{
            "huge", R"({"kernels": {"jobs": 18446744073709551615}})", {"/kernels/jobs: 18446744073709551615"}},
        ErrorCase{"negative", R"({"kernels": {"jobs": -1}})", {"/kernels/jobs: -1", ">= 0"}},
        ErrorCase{"zero_timeout",
                  R"({"agreement": {"timeout_s": 0}})",
                  {"/agreement/timeout_s: 0 ", "allowed: a number > 0 and <= 604800"}},
        ErrorCase{"zero_heartbeat", R"({"agreement": {"heartbeat_s": 0.0}})", {"/agreement/heartbeat_s: 0"}},
        ErrorCase{"negative_timeout",
                  R"({"failure": {"exchange_timeout_s": -3}})",
                  {"/failure/exchange_timeout_s: -3"}},
        ErrorCase{"nullable",
                  R"({"exchange": {"ranks_per_node": 0}})",
                  {"/exchange/ranks_per_node: 0", "an integer >= 1", "or null"}},
        ErrorCase{"not_nullable",
                  R"({"on_downgrade": {"default": null}})",
                  {"/on_downgrade/default: null", "\"warn\", \"error\", \"silent\""}},
        ErrorCase{"list",
                  R"({"kernels": {"seed_dirs": "a"}})",
                  {"/kernels/seed_dirs: \"a\"", "allowed: a list of: a non-empty string"}},
        ErrorCase{
            "list_entry", R"({"kernels": {"tuned": ["a", 3]}})", {"/kernels/tuned/1: 3", "a non-empty string"}},
        ErrorCase{"empty_path", R"({"kernels": {"cache_dir": ""}})", {"/kernels/cache_dir: \"\"", "non-empty"}},
        ErrorCase{"section", R"({"exchange": []})", {"/exchange: []", "an object with keys"}},
        ErrorCase{
            "unknown_key",
            R"({"exchange": {"pth": "halo"}})",
            {"/exchange/pth: \"halo\": unknown key \"pth\"; did you mean \"path\"?", "allowed:", "transport"}},
        ErrorCase{"unknown_section",
                  R"({"exchnage": {}})",
                  {"/exchnage: {}: unknown key", "did you mean \"exchange\"?", "x-*"}},
        ErrorCase{
            "wrong_section", R"({"path": "halo"})", {"/path: \"halo\"", "did you mean \"/exchange/path\"?"}},
        ErrorCase{"unknown_code",
                  R"({"on_downgrade": {"backend_skiped": "warn"}})",
                  {"/on_downgrade/backend_skiped", "did you mean \"backend_skipped\"?"}},
        ErrorCase{"escaped", R"({"a/b~c": 1})", {"/a~1b~0c: 1"}},
        ErrorCase{"group_value",
                  R"({"groups": [{"match": {}, "set": {"exchange": {"path": "x"}}}]})",
                  {"/groups/0/set/exchange/path: \"x\""}},
        ErrorCase{"group_match",
                  R"({"groups": [{"match": {"rank": 3}, "set": {}}]})",
                  {"/groups/0/match/rank: 3: unknown key", "min_world"}},
        ErrorCase{"group_kernels",
                  R"({"groups": [{"match": {}, "set": {"kernels": {"jobs": 1}}}]})",
                  {"/groups/0/set/kernels", "unknown key", "attention, exchange"}},
        ErrorCase{"group_incomplete",
                  R"({"groups": [{"set": {}}]})",
                  {"/groups/0: {\"set\":{}}: required key \"match\" is missing"}},
        ErrorCase{"newer",
                  R"({"schema_version": 2, "brand_new": true})",
                  {"/schema_version: 2 is newer than this library reads", "allowed: an integer >= 1 and <= 1"}},
        ErrorCase{"older", R"({"schema_version": 0})", {"/schema_version: 0 is not allowed"}},
        ErrorCase{"version_type", R"({"schema_version": "1"})", {"/schema_version: \"1\" is not allowed"}},
        ErrorCase{
            "duplicate", R"({"exchange": {"path": "halo", "path": "a2a"}})", {"/exchange/path: duplicate key"}},
        ErrorCase{"duplicate_in_list",
                  R"({"groups": [{"match": {}, "set": {}}, {"match": {"name": "a", "name": "b"}}]})",
                  {"/groups/1/match/name: duplicate key"}},
        ErrorCase{"root", "[1]", {"/: [1]", "allowed: an object"}},
        ErrorCase{"syntax", "{\"exchange\": \n {,}}", {"not valid JSON", "line 2, column 3"}},
        ErrorCase{"empty", "", {"not valid JSON"}},
        ErrorCase{"infinite", R"({"agreement": {"timeout_s": 1e999}})", {"not valid JSON", "1e999"}}),
    [](const auto& test_case) { return test_case.param.name; });

TEST(PolicyErrors, AllProblemsAreNamedAtOnce) {
  const std::string message = error_of([] {
    from_json(R"({"exchange": {"pth": 1, "transport": "x"}, "log": {"level": 3}, "kernels": {"jobs": -1}})");
  });
  EXPECT_THAT(message, AllOf(HasSubstr("/exchange/pth"), HasSubstr("/exchange/transport"),
                             HasSubstr("/log/level"), HasSubstr("/kernels/jobs")));
}

TEST(PolicyErrors, NameTheFile) {
  const test::ScratchFolder folder;
  const std::string file = folder.write("p.json", R"({"log": {"level": "x"}})");
  EXPECT_THAT(error_of([&] {
                Policy::load({.file = file, .json = {}, .code = {}, .ignore_env = true, .environment = {}});
              }),
              HasSubstr(file + ": /log/level: \"x\""));
}

TEST(PolicyErrors, LongValuesAreShortened) {
  const std::string message =
      error_of([] { from_json(R"({"log": {"level": ")" + std::string(100000, 'x') + "\"}}"); });
  EXPECT_LT(message.size(), 500u);
}

}  // namespace
}  // namespace bdcp
