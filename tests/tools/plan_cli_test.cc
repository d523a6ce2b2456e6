// bdcp-plan as a process: exit codes, JSON fields, text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/run_program.h"

namespace bdcp {
namespace {

using nlohmann::json;
using test::ProgramResult;
using testing::HasSubstr;
using Ints = std::vector<std::int64_t>;
using Args = std::vector<std::string>;

ProgramResult run(const Args& args) { return test::run_program("bdcp-plan", args); }

json run_json(Args args) {
  args.push_back("--json");
  const ProgramResult result = run(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_(testing::TempDir() + "/bdcp_plan_" + std::to_string(getpid()) + ".json") {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(PlanCli, EveryJsonField) {
  const json out = run_json({"--lengths", "6x2,4", "--world", "4", "--exchange", "halo"});
  EXPECT_EQ(out.at("tokens"), 16);
  EXPECT_EQ(out.at("padded"), 16);
  EXPECT_EQ(out.at("world"), 4);
  EXPECT_EQ(out.at("local_len"), 4);
  EXPECT_EQ(out.at("packed_cu_seqlens").get<Ints>(), (Ints{0, 6, 12, 16}));
  ASSERT_EQ(out.at("ranks").size(), 4u);
  const json& rank = out.at("ranks")[2];
  const json expect = {
      {"rank", 2},    {"row_offset", 8}, {"n_real", 4},    {"s_first", 6},         {"real_end", 12},
      {"back", 2},    {"cu_q", {0, 4}},  {"cu_k", {0, 6}}, {"max_q", 4},           {"max_k", 6},
      {"first_q", 4}, {"first_k", 6},    {"max_tail", 0},  {"area", 3 + 4 + 5 + 6}};
  EXPECT_EQ(rank, expect);
  EXPECT_EQ(out.at("halo"), (json{{"feasible", true}, {"recv", {0, 4, 2, 0}}, {"send", {4, 2, 0, 0}}}));
  EXPECT_EQ(out.at("a2a").at("in_splits"), json::parse("[[0,4,0,0],[0,0,2,0],[0,0,0,0],[0,0,0,0]]"));
  EXPECT_EQ(out.at("a2a").at("out_splits"), json::parse("[[0,0,0,0],[4,0,0,0],[0,2,0,0],[0,0,0,0]]"));
  // 32:8 heads of 128 in bf16: 8 * 256 * 2 bytes of K and V per token.
  EXPECT_EQ(out.at("bytes"), (json{{"allgather", 3 * 16 * 4096}, {"halo", 6 * 4096}, {"a2a", 6 * 4096}}));
  // Visible pairs by rank: 1+2+3+4, 5+6+1+2, 18, 1+2+3+4.
  EXPECT_DOUBLE_EQ(out.at("balance").at("max_over_mean"), 18.0 / ((10 + 14 + 18 + 10) / 4.0));
  const json& decision = out.at("decision");
  EXPECT_EQ(decision.at("requested"), "halo");
  EXPECT_EQ(decision.at("path"), "halo");
  EXPECT_EQ(decision.at("backend_requested"), "auto");
  for (const json& downgrade : decision.at("downgrades")) EXPECT_EQ(downgrade.at("code"), "backend_skipped");
  EXPECT_FALSE(out.at("assumptions").empty());
}

TEST(PlanCli, EveryWayToNameTheDocuments) {
  const json expect = run_json({"--lengths", "3,4", "--pad", "1", "--world", "2"});
  EXPECT_EQ(expect.at("tokens"), 8);
  EXPECT_EQ(run_json({"--doc-ids", "1,1,1,2,2,2,2,0", "--world", "2"}), expect);
  EXPECT_EQ(run_json({"--cu-seqlens", "0,3,7", "--pad", "1", "--world", "2"}), expect);
  for (const char* text :
       {R"({"lengths": [3, 4]})", R"({"cu_seqlens": [0, 3, 7]})", R"({"doc_ids": [5,5,5,1,1,1,1]})"}) {
    const TempFile file(text);
    EXPECT_EQ(run_json({"--layout", file.path(), "--pad", "1", "--world", "2"}), expect) << text;
  }
  EXPECT_EQ(run_json({"--pack", "prod8192_0", "--world", "4"}).at("tokens"), 8192);
  EXPECT_EQ(run_json({"--pack", "u300", "--world", "1"}).at("tokens"), 32700);
}

TEST(PlanCli, Rectangular) {
  const json out = run_json({"--cu-seqlens", "0,2,5", "--cu-seqlens-k", "0,4,4", "--world", "1"});
  EXPECT_EQ(out.at("ranks")[0].at("area"), 3 + 4);
  EXPECT_EQ(out.at("decision").at("path"), "local");
  const TempFile file(R"({"cu_seqlens": [0, 2, 5], "cu_seqlens_k": [0, 4, 4]})");
  EXPECT_EQ(run_json({"--layout", file.path(), "--world", "1"}), out);
  const ProgramResult refused = run({"--cu-seqlens", "0,2", "--cu-seqlens-k", "0,4", "--world", "2"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("rectangular"));
}

TEST(PlanCli, DowngradesSayFromToCodeRankAndText) {
  json decision = run_json({"--lengths", "16", "--world", "4", "--exchange", "neighbor", "--backend", "host",
                            "--arch", "host"})
                      .at("decision");
  EXPECT_EQ(decision.at("path"), "a2a");
  EXPECT_EQ(decision.at("backend"), "host");
  ASSERT_EQ(decision.at("downgrades").size(), 1u);
  const json& halo = decision.at("downgrades")[0];
  EXPECT_EQ(halo.at("from"), "halo");
  EXPECT_EQ(halo.at("to"), "a2a");
  EXPECT_EQ(halo.at("code"), "halo_infeasible");
  EXPECT_EQ(halo.at("rank"), 2);
  EXPECT_NE(halo.at("text"), "");
  EXPECT_EQ(halo.at("action"), "warn");

  const Args cross = {"--lengths", "16",        "--world", "2",      "--exchange",
                      "a2a",       "--backend", "host",    "--arch", "host"};
  const auto with = [&](const Args& more) {
    Args all = cross;
    all.insert(all.end(), more.begin(), more.end());
    return run_json(all).at("decision");
  };
  EXPECT_EQ(with({}).at("path"), "a2a");
  EXPECT_EQ(with({"--hosts", "a,a"}).at("path"), "a2a");
  decision = with({"--hosts", "a,b"});
  EXPECT_EQ(decision.at("path"), "allgather");
  EXPECT_EQ(decision.at("downgrades")[0].at("code"), "cross_node");
  EXPECT_EQ(with({"--ranks-per-node", "1"}).at("path"), "allgather");
  EXPECT_EQ(with({"--ranks-per-node", "2"}).at("path"), "a2a");
}

TEST(PlanCli, NamedBackendThatCannotRun) {
  const json decision =
      run_json({"--lengths", "16", "--world", "1", "--backend", "host", "--arch", "sm_90a"}).at("decision");
  EXPECT_EQ(decision.at("backend_requested"), "host");
  EXPECT_NE(decision.at("backend"), "host");
  EXPECT_EQ(decision.at("downgrades")[0].at("code"), "backend_unavailable");
  EXPECT_EQ(decision.at("downgrades")[0].at("action"), "error");
}

TEST(PlanCli, PolicyFile) {
  const TempFile file(
      R"({"schema_version": 1, "exchange": {"path": "a2a", "cross_node": "needed_only", "ranks_per_node": 1}})");
  const Args args = {"--lengths", "16", "--world", "2", "--policy", file.path()};
  EXPECT_EQ(run_json(args).at("decision").at("path"), "a2a");
  Args overridden = args;
  overridden.insert(overridden.end(), {"--exchange", "allgather"});
  EXPECT_EQ(run_json(overridden).at("decision").at("path"), "allgather");
  const TempFile bad(R"({"schema_version": 1, "exchange": {"path": "sideways"}})");
  const ProgramResult result = run({"--lengths", "16", "--world", "2", "--policy", bad.path()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("/exchange/path"));
}

TEST(PlanCli, LargeWorldsListTheirEdges) {
  const json out = run_json({"--lengths", "1024", "--world", "128"});
  ASSERT_TRUE(out.at("a2a").is_array());
  EXPECT_EQ(out.at("a2a").size(), 128u * 127 / 2);
  EXPECT_EQ(out.at("a2a")[0], (json{0, 1, 8}));
  EXPECT_TRUE(run_json({"--lengths", "1024", "--world", "64"}).at("a2a").is_object());
}

TEST(PlanCli, TextSummarisesLongLists) {
  const ProgramResult result = run({"--lengths", "10x5000", "--world", "128"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.out.size(), 8000u);
  for (const char* words :
       {"documents 5000", "(5002 entries)", "(108 more)", "balance", "path", "backend", "assumed"}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

TEST(PlanCli, UsageErrors) {
  for (const Args& args :
       std::vector<Args>{{},
                         {"--world", "2"},
                         {"--lengths", "4"},
                         {"--lengths", "4", "--doc-ids", "1", "--world", "2"},
                         {"--lengths", "4", "--world", "0"},
                         {"--lengths", "4", "--world", "two"},
                         {"--lengths", "4", "--world", "2", "--exchange", "sideways"},
                         {"--lengths", "4", "--world", "2", "--backend", "abacus"},
                         {"--lengths", "4", "--world", "2", "--dtype", "f8"},
                         {"--lengths", "4", "--world", "2", "--arch", "volta"},
                         {"--lengths", "4", "--world", "2", "--pad", "-1"},
                         {"--lengths", "4", "--cu-seqlens-k", "0,4", "--world", "1"},
                         {"--lengths", "4", "--world", "2", "--hosts", "a,b", "--ranks-per-node", "1"},
                         {"--lengths", "4", "--world", "2", "--nonsense"}}) {
    const ProgramResult result = run(args);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(args) << result.out;
    EXPECT_NE(result.err, "") << testing::PrintToString(args);
    EXPECT_EQ(result.out, "") << testing::PrintToString(args);
  }
  EXPECT_EQ(run({"--help"}).exit_code, 0);
}

TEST(PlanCli, InvalidInputNamesPositionAndValue) {
  struct Case {
    Args args;
    std::string words;
  };
  for (const Case& one :
       std::vector<Case>{{{"--lengths", "4,-5"}, "lengths[1] is -5"},
                         {{"--lengths", "4,five"}, "entry 1 is \"five\""},
                         {{"--lengths", "4x"}, "entry 0 is \"4x\""},
                         {{"--lengths", "1x99999999999"}, "entry 0"},
                         {{"--doc-ids", "1,0,2"}, "doc_ids[1] is 0"},
                         {{"--doc-ids", "0,1"}, "leading padding"},
                         {{"--doc-ids", "1,2,1"}, "doc_ids[2] is 1"},
                         {{"--cu-seqlens", "1,4"}, "cu_seqlens[0] is 1"},
                         {{"--cu-seqlens", "0,4,3"}, "cu_seqlens[2] is 3"},
                         {{"--pack", "prod8192_9"}, "closest: prod8192_0"},
                         {{"--layout", "/nonexistent.json"}, "/nonexistent.json"},
                         {{"--lengths", "4", "--hosts", "a,b,c"}, "--hosts names 3 hosts"},
                         {{"--lengths", "4", "--heads-q", "7", "--heads-kv", "3"}, "--heads-q is 7"},
                         {{"--lengths", "4", "--dropout", "1"}, "--dropout is 1"}}) {
    Args args = one.args;
    args.insert(args.end(), {"--world", "2"});
    const ProgramResult result = run(args);
    EXPECT_EQ(result.exit_code, 3) << testing::PrintToString(args);
    EXPECT_THAT(result.err, HasSubstr(one.words));
    EXPECT_EQ(result.out, "");
  }
  for (const char* text :
       {"[1]", "{}", "{\"lengths\": [1.5]}", "{\"lengths\": 3}", "{\"length\": [1]}", "{\"lengths\": [1]",
        "{\"lengths\": [1], \"doc_ids\": [1]}", "{\"lengths\": [1], \"cu_seqlens_k\": [0, 1]}"}) {
    const TempFile file(text);
    const ProgramResult result = run({"--layout", file.path(), "--world", "1"});
    EXPECT_EQ(result.exit_code, 3) << text;
    EXPECT_THAT(result.err, HasSubstr(file.path()));
  }
}

// What no backend can run leaves nothing to decide.
TEST(PlanCli, NoBackendForTheShape) {
  const ProgramResult result = run({"--lengths", "4", "--world", "1", "--head-dim", "4096"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("backend_unavailable"));
}

}  // namespace
}  // namespace bdcp
