// Policy: built-in values, groups, origins, dump.
#include "bdcp/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "bdcp/error.h"
#include "policy_support.h"

namespace bdcp {
namespace {

using test::from_json;
using testing::HasSubstr;

TEST(Policy, BuiltInValuesAreThoseOfTheContract) {
  const PolicyValues values = Policy().resolve();
  EXPECT_EQ(values.attention.backend, BackendKind::automatic);
  EXPECT_FALSE(values.attention.deterministic);
  EXPECT_EQ(values.exchange.path, ExchangePath::automatic);
  EXPECT_EQ(values.exchange.cross_node, PolicyValues::CrossNode::allgather);
  EXPECT_EQ(values.exchange.landing_slots, 2);
  EXPECT_EQ(values.exchange.landing_mib, 512);
  EXPECT_EQ(values.exchange.ranks_per_node, std::nullopt);
  EXPECT_EQ(values.agreement.timeout_s, 600);
  EXPECT_EQ(values.agreement.heartbeat_s, 2);
  EXPECT_EQ(values.failure.exchange_timeout_s, 120);
  EXPECT_EQ(values.kernels.on_miss, PolicyValues::OnMiss::jit);
  EXPECT_EQ(values.log.level, PolicyValues::LogLevel::info);
  EXPECT_EQ(values.action_for("anything"), PolicyValues::OnDowngrade::warn);
  EXPECT_EQ(values.action_for("backend_unavailable"), PolicyValues::OnDowngrade::error);
}

TEST(Policy, EveryFieldOfAFileArrives) {
  const PolicyValues values = from_json(R"({
    "schema_version": 1,
    "attention": {"backend": "portable", "deterministic": true, "batch_invariant": true, "sm_margin": 8},
    "exchange": {"path": "a2a", "transport": "copy_engine", "cross_node": "needed_only", "backward_kv": "keep",
                 "grad_payload": "input", "landing_slots": 4, "landing_mib": 64, "balance": "none",
                 "ranks_per_node": 4},
    "on_downgrade": {"default": "silent", "cross_node": "error", "backend_unavailable": null},
    "agreement": {"timeout_s": 0.5, "heartbeat_s": 1},
    "failure": {"exchange_timeout_s": 7},
    "kernels": {"on_miss": "error", "cache_dir": "/c", "seed_dirs": ["/s", "/t"], "jobs": 3, "tuned": ["/u"]},
    "log": {"level": "off"}})")
                                  .resolve();
  EXPECT_EQ(values.attention.backend, BackendKind::portable);
  EXPECT_TRUE(values.attention.deterministic);
  EXPECT_TRUE(values.attention.batch_invariant);
  EXPECT_EQ(values.attention.sm_margin, 8);
  EXPECT_EQ(values.exchange.path, ExchangePath::a2a);
  EXPECT_EQ(values.exchange.transport, PolicyValues::Transport::copy_engine);
  EXPECT_EQ(values.exchange.cross_node, PolicyValues::CrossNode::needed_only);
  EXPECT_EQ(values.exchange.backward_kv, PolicyValues::BackwardKv::keep);
  EXPECT_EQ(values.exchange.grad_payload, PolicyValues::GradPayload::input);
  EXPECT_EQ(values.exchange.landing_slots, 4);
  EXPECT_EQ(values.exchange.landing_mib, 64);
  EXPECT_EQ(values.exchange.ranks_per_node, 4);
  EXPECT_EQ(values.action_for("cross_node"), PolicyValues::OnDowngrade::error);
  EXPECT_EQ(values.action_for("backend_unavailable"), PolicyValues::OnDowngrade::silent) << "null: as default";
  EXPECT_EQ(values.agreement.timeout_s, 0.5);
  EXPECT_EQ(values.failure.exchange_timeout_s, 7);
  EXPECT_EQ(values.kernels.on_miss, PolicyValues::OnMiss::error);
  EXPECT_EQ(values.kernels.cache_dir, "/c");
  EXPECT_EQ(values.kernels.seed_dirs, (std::vector<std::string>{"/s", "/t"}));
  EXPECT_EQ(values.kernels.jobs, 3);
  EXPECT_EQ(values.kernels.tuned, (std::vector<std::string>{"/u"}));
  EXPECT_EQ(values.log.level, PolicyValues::LogLevel::off);
}

TEST(Policy, KeysThatStartWithXAreFree) {
  EXPECT_NO_THROW(from_json(R"({"x-a": {"b": [1]}, "exchange": {"x-c": 2}, "on_downgrade": {"x-d": null},
                               "groups": [{"x-e": 1, "match": {"x-f": 1}, "set": {"x-g": {}}}]})"));
}

TEST(Policy, AllMatchingGroupsApplyInOrder) {
  const Policy policy = from_json(R"({
    "exchange": {"path": "halo", "landing_slots": 3},
    "groups": [
      {"match": {"name": "cp", "min_world": 9}, "set": {"exchange": {"path": "a2a", "landing_mib": 9}}},
      {"match": {"min_world": 16}, "set": {"exchange": {"path": "allgather"}}},
      {"match": {"name": "tp"}, "set": {"attention": {"sm_margin": 4}}}]})");
  EXPECT_EQ(policy.resolve({"cp", 8, 1}).exchange.path, ExchangePath::halo);
  EXPECT_EQ(policy.resolve({"cp", 9, 1}).exchange.path, ExchangePath::a2a);
  const PolicyValues both = policy.resolve({"cp", 16, 2});
  EXPECT_EQ(both.exchange.path, ExchangePath::allgather);
  EXPECT_EQ(both.exchange.landing_mib, 9);
  EXPECT_EQ(both.exchange.landing_slots, 3);
  EXPECT_EQ(both.attention.sm_margin, std::nullopt);
  EXPECT_EQ(policy.resolve({"tp", 2, 1}).attention.sm_margin, 4);
}

struct MatchCase {
  const char* match;
  GroupFacts yes, no;
};
class PolicyMatch : public testing::TestWithParam<MatchCase> {};
TEST_P(PolicyMatch, HoldsExactlyForItsFacts) {
  const Policy policy = from_json(std::string(R"({"groups": [{"match": )") + GetParam().match +
                                  R"(, "set": {"attention": {"sm_margin": 1}}}]})");
  EXPECT_EQ(policy.resolve(GetParam().yes).attention.sm_margin, 1);
  EXPECT_EQ(policy.resolve(GetParam().no).attention.sm_margin, std::nullopt);
}
INSTANTIATE_TEST_SUITE_P(Facts, PolicyMatch,
                         testing::Values(MatchCase{R"({"name": "cp"})", {"cp", 1, 1}, {"cp2", 1, 1}},
                                         MatchCase{R"({"world": 4})", {"cp", 4, 1}, {"cp", 5, 1}},
                                         MatchCase{R"({"min_world": 4})", {"cp", 4, 1}, {"cp", 3, 1}},
                                         MatchCase{R"({"max_world": 4})", {"cp", 4, 1}, {"cp", 5, 1}},
                                         MatchCase{R"({"nodes": 2})", {"cp", 4, 2}, {"cp", 4, 1}},
                                         MatchCase{R"({"min_nodes": 2})", {"cp", 4, 2}, {"cp", 4, 1}},
                                         MatchCase{R"({"max_nodes": 2})", {"cp", 4, 2}, {"cp", 4, 3}},
                                         MatchCase{R"({"world": 4, "nodes": 2})", {"cp", 4, 2}, {"cp", 4, 1}}));

TEST(Policy, FieldsCarryValueOriginAndScope) {
  const Policy policy = test::from_env(
      {{"BDCP_LOG", "debug"}, {"BDCP_SET", "exchange.landing_mib=7"}},
      R"({"exchange": {"path": "halo", "landing_slots": 3}, "groups": [{"match": {}, "set": {"exchange": {"landing_slots": 4}}}]})",
      {{"attention.sm_margin", "2"}});
  const auto check = [&](const char* pointer, const char* value, const char* origin, bool group) {
    const PolicyField field = test::field_of(policy, pointer);
    EXPECT_EQ(field.value, value) << pointer;
    EXPECT_EQ(field.origin, origin) << pointer;
    EXPECT_EQ(field.group, group) << pointer;
    EXPECT_EQ(field.compared, value) << pointer;
  };
  check("/exchange/path", "\"halo\"", "policy json", true);
  check("/exchange/landing_slots", "4", "policy json /groups/0", true);
  check("/attention/sm_margin", "2", "code", true);
  check("/exchange/landing_mib", "7", "environment BDCP_SET", true);
  check("/log/level", "\"debug\"", "environment BDCP_LOG", false);
  check("/agreement/timeout_s", "600", "built-in", true);
  check("/kernels/cache_dir", "null", "built-in", false);
  check("/on_downgrade/cross_node", "null", "built-in", true);
}

TEST(Policy, DumpIsJsonOfValueAndOrigin) {
  const std::string dump = test::from_code({{"exchange.path", "a2a"}}).dump();
  EXPECT_THAT(dump, HasSubstr("\"/exchange/path\": {\n    \"value\": \"a2a\",\n    \"origin\": \"code\"\n  }"));
  EXPECT_THAT(dump,
              HasSubstr("\"/kernels/seed_dirs\": {\n    \"value\": [],\n    \"origin\": \"built-in\"\n  }"));
}

TEST(Policy, DumpSurvivesTextThatIsNotUtf8) {
  EXPECT_THAT(test::from_code({{"kernels.cache_dir", "/tmp/\xff"}}).dump(), HasSubstr("/tmp/"));
}

TEST(Policy, ShippedExamplesLoadAndDefaultIsTheBuiltIn) {
  const std::string folder = std::string(BDCP_SOURCE_DIR) + "/configs/policies/";
  const auto load = [&](const char* name) {
    return Policy::load({.file = folder + name, .json = {}, .code = {}, .ignore_env = true, .environment = {}});
  };
  const auto built_in = Policy().fields(), spelled_out = load("default.json").fields();
  ASSERT_EQ(built_in.size(), spelled_out.size());
  for (std::size_t i = 0; i < built_in.size(); ++i) {
    EXPECT_EQ(built_in[i].value, spelled_out[i].value) << built_in[i].pointer;
    if (built_in[i].value != "null") {
      EXPECT_NE(spelled_out[i].origin, "built-in") << built_in[i].pointer << " is missing in default.json";
    }
  }
  EXPECT_EQ(load("single_node.json").resolve().exchange.path, ExchangePath::halo);
  EXPECT_EQ(load("cross_node.json").resolve({"cp", 16, 2}).exchange.path, ExchangePath::a2a);
  EXPECT_TRUE(load("deterministic_training.json").resolve().attention.deterministic);
}

TEST(Policy, VariantsCoverWhatAnyGroupMayHave) {
  const std::array<std::string_view, 2> names{"attention.deterministic", "exchange.path"};
  const auto paths_of = [&](const Policy& policy) {
    std::vector<std::pair<bool, ExchangePath>> found;
    for (const PolicyValues& values : policy.variants(names))
      found.emplace_back(values.attention.deterministic, values.exchange.path);
    return found;
  };
  using testing::UnorderedElementsAre;
  constexpr auto halo = ExchangePath::halo, a2a = ExchangePath::a2a;
  EXPECT_THAT(paths_of(Policy()), UnorderedElementsAre(std::pair{false, ExchangePath::automatic}));
  const std::string text = R"({
    "schema_version": 1, "exchange": {"path": "halo"}, "groups": [
      {"match": {"name": "a"}, "set": {"exchange": {"path": "a2a"}, "attention": {"sm_margin": 3}}},
      {"match": {"name": "b"}, "set": {"exchange": {"path": "a2a"}, "attention": {"deterministic": true}}}]})";
  EXPECT_THAT(paths_of(from_json(text)), UnorderedElementsAre(std::pair{false, halo}, std::pair{false, a2a},
                                                              std::pair{true, halo}, std::pair{true, a2a}));
  Policy::Sources settled;
  settled.ignore_env = true;
  settled.json = text;
  settled.code = {{"exchange.path", "allgather"}};
  EXPECT_THAT(paths_of(Policy::load(settled)), UnorderedElementsAre(std::pair{false, ExchangePath::allgather},
                                                                    std::pair{true, ExchangePath::allgather}));
  const std::array<std::string_view, 1> unknown{"exchange.pat"};
  EXPECT_THROW(Policy().variants(unknown), Error);
}

}  // namespace
}  // namespace bdcp
