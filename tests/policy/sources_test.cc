// Sources: files, code, environment; precedence; paths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"
#include "support/measured_file.h"
#include "support/policy_fields.h"

namespace bdcp {
namespace {

using test::error_of;
using test::from_code;
using test::from_env;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kFileAndGroup =
    R"({"exchange": {"path": "halo"}, "groups": [{"match": {}, "set": {"exchange": {"path": "a2a"}}}]})";

TEST(PolicySources, LaterLayersWin) {
  const auto path = [](const Policy& policy) { return policy.resolve().exchange.path; };
  EXPECT_EQ(path(test::from_json(R"({"exchange": {"path": "halo"}})")), ExchangePath::halo);
  EXPECT_EQ(path(test::from_json(kFileAndGroup)), ExchangePath::a2a);
  EXPECT_EQ(path(test::from_json(kFileAndGroup, {{"exchange.path", "allgather"}})), ExchangePath::allgather);
  EXPECT_EQ(
      path(from_env({{"BDCP_SET", "exchange.path=halo"}}, kFileAndGroup, {{"exchange.path", "allgather"}})),
      ExchangePath::halo);
}

TEST(PolicySources, IgnoreEnvIgnoresAllOfIt) {
  const Policy policy =
      Policy::load({.file = {},
                    .json = {},
                    .code = {},
                    .ignore_env = true,
                    .environment = test::Pairs{{"BDCP_POLICY", "/none"}, {"BDCP_SET", "nonsense"}}});
  EXPECT_EQ(policy.resolve().exchange.path, ExchangePath::automatic);
}

TEST(PolicySources, AliasesOfTheEnvironment) {
  const PolicyValues values =
      from_env({{"BDCP_CACHE_DIR", "123"}, {"BDCP_ALLOW_XNODE", "1"}, {"BDCP_LOG", "trace"}}).resolve();
  EXPECT_EQ(values.kernels.cache_dir, "123") << "text, although it could be read as a number";
  EXPECT_EQ(values.exchange.cross_node, PolicyValues::CrossNode::needed_only);
  EXPECT_EQ(values.log.level, PolicyValues::LogLevel::trace);
  const Policy zero = from_env({{"BDCP_ALLOW_XNODE", "0"}}, R"({"exchange": {"cross_node": "needed_only"}})");
  EXPECT_EQ(zero.resolve().exchange.cross_node, PolicyValues::CrossNode::needed_only) << "0 sets nothing";
  EXPECT_EQ(from_env({{"BDCP_LOG", "trace"}, {"BDCP_SET", "log.level=error"}}).resolve().log.level,
            PolicyValues::LogLevel::error);
}

TEST(PolicySources, SetTakesSeveralFieldsAndJson) {
  const PolicyValues values = from_env({{"BDCP_SET",
                                         " exchange.path = halo ;; /attention/deterministic=true;"
                                         "kernels.seed_dirs=[\"a;b\", \"c=\\\"d;\"];kernels.cache_dir=x=y;"}})
                                  .resolve();
  EXPECT_EQ(values.exchange.path, ExchangePath::halo);
  EXPECT_TRUE(values.attention.deterministic);
  EXPECT_EQ(values.kernels.seed_dirs, (std::vector<std::string>{"a;b", "c=\"d;"}));
  EXPECT_EQ(values.kernels.cache_dir, "x=y");
}

TEST(PolicySources, CodeAndSetReachEveryField) {
  const test::ScratchFolder folder;
  const Policy built_in;
  std::size_t changed = 0;
  for (const test::PolicyFieldCase& field : test::policy_field_cases(folder.path())) {
    if (field.alternative.empty()) continue;
    const std::string before = test::field_of(built_in, field.pointer).value;
    const PolicyField code = test::field_of(from_code({{field.name, field.alternative}}), field.pointer);
    EXPECT_NE(code.value, before) << field.pointer;
    const PolicyField set =
        test::field_of(from_env({{"BDCP_SET", field.name + "=" + field.alternative}}), field.pointer);
    EXPECT_EQ(set.value, code.value) << field.pointer;
    EXPECT_EQ(set.origin, "environment BDCP_SET");
    ++changed;
  }
  EXPECT_EQ(changed + 1, built_in.fields().size()) << "all but exchange.balance, which has one value";
}

TEST(PolicySources, OverridesAreChecked) {
  EXPECT_THAT(error_of([] {
                from_code({{"exchange.landing_slots", "1"}});
              }),
              AllOf(HasSubstr("code: /exchange/landing_slots: 1 is not allowed"),
                    HasSubstr("an integer >= 2 and <= 64")));
  EXPECT_THAT(error_of([] {
                from_code({{"attention.deterministic", "yes"}});
              }),
              AllOf(HasSubstr("/attention/deterministic: \"yes\""), HasSubstr("allowed: true, false")));
  EXPECT_THAT(error_of([] {
                from_code({{"exchange.pth", "halo"}});
              }),
              AllOf(HasSubstr("code: exchange.pth: \"halo\": unknown field"),
                    HasSubstr("did you mean \"exchange.path\"?")));
  EXPECT_THAT(error_of([] { from_code({{"path", "halo"}}); }), HasSubstr("did you mean \"exchange.path\"?"));
  EXPECT_THAT(error_of([] { from_code({{"groups", "[]"}}); }), HasSubstr("unknown field"));
  EXPECT_THAT(
      error_of([] {
        from_env({{"BDCP_SET", "exchange.path=hallo"}});
      }),
      AllOf(HasSubstr("environment BDCP_SET: /exchange/path: \"hallo\""), HasSubstr("did you mean \"halo\"?")));
  EXPECT_THAT(error_of([] { from_env({{"BDCP_SET", "exchange.path"}}); }), HasSubstr("allowed: field=value"));
  EXPECT_THAT(error_of([] {
                from_env({{"BDCP_SET", "kernels.cache_dir=\"x"}});
              }),
              HasSubstr("quote is not closed"));
  EXPECT_THAT(error_of([] {
                from_env({{"BDCP_LOG", "loud"}});
              }),
              AllOf(HasSubstr("environment BDCP_LOG: /log/level: \"loud\""), HasSubstr("\"trace\"")));
  EXPECT_THAT(
      error_of([] {
        from_env({{"BDCP_ALLOW_XNODE", "yes"}});
      }),
      AllOf(HasSubstr("BDCP_ALLOW_XNODE: /exchange/cross_node: \"yes\""), HasSubstr("allowed: \"0\", \"1\"")));
}

TEST(PolicySources, FilesAndTheirPaths) {
  const test::ScratchFolder folder;
  folder.write("sub/measured.json", test::measured_file());
  const std::string file = folder.write("sub/policy.json", R"({
    "exchange": {"measured": "measured.json"},
    "kernels": {"cache_dir": "../cache", "seed_dirs": ["seeds", "/abs"], "tuned": ["./t.json"]}})");
  for (const Policy& policy :
       {Policy::load({.file = file, .json = {}, .code = {}, .ignore_env = true, .environment = {}}),
        Policy::load({.file = {},
        .json = {},
        .code = {},
        .ignore_env = false,
        .environment = test::Pairs{{"BDCP_POLICY", file}}})}) {
    const PolicyValues values = policy.resolve();
    EXPECT_EQ(values.exchange.measured, folder.path() + "/sub/measured.json");
    EXPECT_EQ(values.kernels.cache_dir, folder.path() + "/cache");
    EXPECT_EQ(values.kernels.seed_dirs, (std::vector<std::string>{folder.path() + "/sub/seeds", "/abs"}));
    EXPECT_EQ(values.kernels.tuned, (std::vector<std::string>{folder.path() + "/sub/t.json"}));
    EXPECT_EQ(test::field_of(policy, "/kernels/cache_dir").origin, file);
  }
}

TEST(PolicySources, AFileInCodeWinsOverTheEnvironments) {
  const test::ScratchFolder folder;
  const std::string file = folder.write("policy.json", R"({"exchange": {"path": "halo"}})");
  const Policy policy = Policy::load({.file = file,
                                      .json = {},
                                      .code = {},
                                      .ignore_env = false,
                                      .environment = test::Pairs{{"BDCP_POLICY", "/nonexistent"}}});
  EXPECT_EQ(policy.resolve().exchange.path, ExchangePath::halo);
}

TEST(PolicySources, FilesThatCannotBeRead) {
  const auto load = [](const std::string& file) {
    Policy::load({.file = file, .json = {}, .code = {}, .ignore_env = true, .environment = {}});
  };
  EXPECT_THAT(error_of([&] { load("/nonexistent/p.json"); }, ErrorCode::io_error),
              AllOf(HasSubstr("policy file \"/nonexistent/p.json\""), HasSubstr("No such file")));
  const test::ScratchFolder folder;
  EXPECT_THAT(error_of([&] { load(folder.path()); }, ErrorCode::io_error), HasSubstr("it is a folder"));
  EXPECT_THAT(error_of(
                  [&] {
                    from_code({{"exchange.measured", "/nonexistent/m.json"}});
                  },
                  ErrorCode::io_error),
              HasSubstr("code: /exchange/measured: file \"/nonexistent/m.json\""));
  EXPECT_THAT(error_of([&] {
                Policy::load({.file = "a", .json = "{}", .code = {}, .ignore_env = true, .environment = {}});
              }),
              HasSubstr("allowed: one of them"));
}

}  // namespace
}  // namespace bdcp
