// bdcp-bench as users run it: its lines, its exit codes, and that its checks pass on the host backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace bdcp {
namespace {

using Json = nlohmann::json;

struct Ran {
  int exit_code = -1;
  std::string out;
  std::vector<Json> lines;
};

Ran bench(const std::string& arguments, bool json = true) {
  const std::string command =
      std::string(BDCP_BINARY_DIR "/bin/bdcp-bench ") + arguments + (json ? " --json" : "") + " 2>/dev/null";
  Ran ran;
  FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return ran;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ran.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::istringstream text(ran.out);
  for (std::string line; json && std::getline(text, line);) ran.lines.push_back(Json::parse(line));
  return ran;
}

const std::string kSmall = "attention --device host --hq 4 --hkv 2 --d 16 --seed 5 ";

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

TEST(BenchCli, TimesBothDirections) {
  const Ran ran = bench(kSmall + "--lengths 3,4x5,0,30 --dv 8 --dtype f16 --iters 3");
  ASSERT_EQ(ran.exit_code, 0);
  ASSERT_EQ(ran.lines.size(), 2u);
  EXPECT_EQ(ran.lines[0]["mode"], "fwd");
  EXPECT_EQ(ran.lines[1]["mode"], "bwd");
  for (const Json& line : ran.lines) {
    const Json expected{{"impl", "bdcp"},   {"pack", "lengths"}, {"docs", 8},         {"tokens", 53},
                        {"hq", 4},          {"hkv", 2},          {"d", 16},           {"dv", 8},
                        {"world", 1},       {"dtype", "f16"},    {"backend", "host"}, {"exchange", "local"},
                        {"device", "host"}, {"seed", 5},         {"iters", 3}};
    for (const auto& [name, value] : expected.items()) EXPECT_EQ(line[name], value) << name;
    EXPECT_GT(line["ms"], 0.0);
    EXPECT_GT(line["begin_step_us"], 0.0);
    EXPECT_TRUE(line["tflops"].is_number());
    EXPECT_FALSE(line.contains("errors"));
    EXPECT_FALSE(line.contains("pass"));
  }
}

TEST(BenchCli, ChecksEveryDtype) {
  for (const std::string dtype : {"bf16", "f16", "f32"}) {
    const Ran ran = bench(kSmall + "--lengths 70,1x5,33 --pad 6 --check --dtype " + dtype);
    EXPECT_EQ(ran.exit_code, 0) << dtype << ran.out;
    ASSERT_EQ(ran.lines.size(), 2u);
    EXPECT_THAT(keys(ran.lines[0]["errors"]), testing::UnorderedElementsAre("out", "lse"));
    EXPECT_THAT(keys(ran.lines[1]["errors"]), testing::UnorderedElementsAre("out", "lse", "dq", "dk", "dv"));
    for (const Json& line : ran.lines) {
      EXPECT_EQ(line["pass"], true);
      EXPECT_EQ(line["padding_zero"], true);
      EXPECT_EQ(line["repeat_identical"], true);
      EXPECT_TRUE(line["ms"].is_null()) << "a check alone does not time";
      for (const auto& [name, error] : line["errors"].items()) {
        EXPECT_TRUE(error["max"].is_number()) << name;
        EXPECT_TRUE(error["rel_l2"].is_number()) << name;
      }
    }
    EXPECT_GT(ran.lines[1]["errors"]["dk"]["rel_l2"], 0.0) << "rounded results cannot be exact";
  }
}

TEST(BenchCli, ChecksAndTimesWhenAskedForBoth) {
  const Ran ran = bench(kSmall + "--lengths 40 --mode fwd --check --iters 2");
  EXPECT_EQ(ran.exit_code, 0);
  ASSERT_EQ(ran.lines.size(), 1u);
  EXPECT_GT(ran.lines[0]["ms"], 0.0);
  EXPECT_EQ(ran.lines[0]["pass"], true);
}

TEST(BenchCli, ChecksLargeCasesBySamples) {
  const Ran ran = bench(kSmall + "--lengths 200,17,90 --pad 3 --check --oracle sampled --world 2");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  ASSERT_EQ(ran.lines.size(), 2u);
  EXPECT_THAT(ran.lines[0]["against"].get<std::string>(), testing::HasSubstr("f32"));
}

TEST(BenchCli, EveryExchangePathRunsAndIsNamed) {
  for (const std::string path : {"allgather", "halo", "a2a"}) {
    const Ran ran =
        bench(kSmall + "--lengths 30,50,20x3 --pad 5 --world 3 --check --poison 1 --exchange " + path);
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    ASSERT_EQ(ran.lines.size(), 2u);
    for (const Json& line : ran.lines) {
      EXPECT_EQ(line["exchange"], path);
      EXPECT_EQ(line["world"], 3);
    }
  }
}

TEST(BenchCli, NamesThePathThatRanNotTheOneAskedFor) {
  const Ran ran = bench(kSmall + "--lengths 120 --world 4 --mode fwd --check --exchange halo");
  EXPECT_EQ(ran.exit_code, 0);
  ASSERT_EQ(ran.lines.size(), 1u);
  EXPECT_EQ(ran.lines[0]["exchange"], "a2a") << "one document over four ranks reaches further than a neighbour";
  std::vector<std::string> codes;
  for (const Json& downgrade : ran.lines[0]["downgrades"]) codes.push_back(downgrade["code"]);
  EXPECT_THAT(codes, testing::Contains("halo_infeasible"));
}

TEST(BenchCli, PoisonedDocumentStaysAlone) {
  const Ran ran = bench(kSmall + "--lengths 9,21,0,14 --pad 4 --poison 1");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  ASSERT_EQ(ran.lines.size(), 2u);
  for (const Json& line : ran.lines) {
    const Json expected{{"document", 1},
                        {"rows_changed", 0},
                        {"padding_zero", true},
                        {"document_keeps_nan", true},
                        {"dq_compared_bitwise", true},
                        {"pass", true}};
    EXPECT_EQ(line["poison"], expected);
    EXPECT_FALSE(line.contains("errors"));
  }
}

TEST(BenchCli, Rectangular) {
  const Ran ran = bench(kSmall + "--cu-seqlens 0,5,25,25,30 --cu-seqlens-k 0,40,50,57,57 --check --poison 1");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  ASSERT_EQ(ran.lines.size(), 2u);
  EXPECT_EQ(ran.lines[0]["tokens"], 30);
  EXPECT_EQ(ran.lines[0]["pack"], "cu_seqlens");
}

TEST(BenchCli, RandomLayoutsInOneProcess) {
  const Ran ran = bench(kSmall + "--random 9 --max-tokens 150 --mode both");
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  ASSERT_EQ(ran.lines.size(), 18u);
  EXPECT_EQ(ran.lines[17]["pack"], "random/8");
  for (const Json& line : ran.lines) EXPECT_EQ(line["pass"], true);
}

TEST(BenchCli, PacksByName) {
  const Ran list = bench("attention --list-packs", false);
  EXPECT_EQ(list.exit_code, 0);
  for (const char* pack : {"prod8192_0", "u512", "one16k"}) EXPECT_THAT(list.out, testing::HasSubstr(pack));
  const Ran ran = bench(
      "attention --device host --hq 1 --hkv 1 --d 8 --mode fwd --iters 1 --warmup 0 "
      "--pack prod8192_0 --pack u16");
  EXPECT_EQ(ran.exit_code, 0);
  ASSERT_EQ(ran.lines.size(), 2u);
  EXPECT_EQ(ran.lines[0]["pack"], "prod8192_0");
  EXPECT_EQ(ran.lines[0]["docs"], 15);
  EXPECT_EQ(ran.lines[0]["tokens"], 8192);
  EXPECT_EQ(ran.lines[1]["docs"], 2048);
  EXPECT_EQ(ran.lines[1]["tokens"], 32768);
}

TEST(BenchCli, TextForm) {
  const Ran ran = bench(kSmall + "--lengths 12,8 --check", false);
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.out, testing::HasSubstr("1 of 1 layouts passed"));
  EXPECT_THAT(ran.out, testing::HasSubstr("rel l2"));
}

TEST(BenchCli, FreshSeedUnlessGiven) {
  const std::string call = "attention --device host --hq 1 --hkv 1 --d 8 --lengths 4 --mode fwd --iters 1";
  const Ran first = bench(call), second = bench(call);
  ASSERT_EQ(first.lines.size(), 1u);
  ASSERT_EQ(second.lines.size(), 1u);
  EXPECT_NE(first.lines[0]["seed"], second.lines[0]["seed"]);
}

TEST(BenchCli, ExitCodes) {
  EXPECT_EQ(bench("--help", false).exit_code, 0);
  EXPECT_EQ(bench("attention --help", false).exit_code, 0);
  for (const char* usage : {"", "attention", "frobnicate", "attention --lengths 4 --no-such-option",
                            "attention --lengths 4 --mode sideways", "attention --lengths 4 --dtype f8",
                            "attention --lengths 4 --backend gpu", "attention --lengths 4 --iters 0",
                            "attention --lengths 4 --exchange pigeon", "attention --cu-seqlens-k 0,4"}) {
    EXPECT_EQ(bench(usage, false).exit_code, 2) << usage;
  }
  for (const char* invalid : {"--pack no_such_pack", "--lengths 4,x", "--lengths 4,-1", "--cu-seqlens 0,5,3",
                              "--lengths 4 --poison 1", "--cu-seqlens 0,4 --cu-seqlens-k 0,6 --world 2"}) {
    EXPECT_EQ(bench(kSmall + invalid, false).exit_code, 3) << invalid;
  }
  EXPECT_EQ(bench("attention --device host --lengths 4 --hq 4 --hkv 3", false).exit_code, 3);
  EXPECT_EQ(bench(kSmall + "--lengths 4 --backend reference", false).exit_code, 4);
  EXPECT_EQ(bench(kSmall + "--lengths 4 --policy no/such/file", false).exit_code, 4);
}

}  // namespace
}  // namespace bdcp
