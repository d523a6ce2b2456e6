#include "policy/tuned_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"

namespace bdcp::policy {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

std::string row(const std::string& match, int tile, const std::string& kernel = "forward",
                const std::string& arch = "sm_90a") {
  return fmt::format(R"({{"kernel": "{}", "arch": "{}", "match": {}, "config": {{"tile_m": {}}},
    "provenance": {{"device": "a GPU", "driver": "570", "nvrtc": "12.4", "date": "2026-01-02", "ms": 1.5}}}})",
                     kernel, arch, match, tile);
}
std::string table(const std::vector<std::string>& rows) {
  std::string text = R"({"schema_version": 1, "rows": [)";
  for (std::size_t i = 0; i < rows.size(); ++i) text += (i ? "," : "") + rows[i];
  return text + "]}";
}
int tile(const TunedTable& tuned, const TunedFacts& facts, const char* kernel = "forward",
         const char* arch = "sm_90a") {
  const auto found = tuned.find(kernel, arch, facts);
  return found ? found->config.at("tile_m") : -1;
}

TEST(TunedTable, TheMostSpecificMatchingRowWins) {
  const TunedTable tuned =
      TunedTable::parse(table({row(R"({"head_dim": 128, "gqa": 4})", 3), row("{}", 1),
                               row(R"({"head_dim": 128})", 2), row(R"({"layout_class": "many_short"})", 4),
                               row("{}", 9, "backward"), row("{}", 8, "forward", "sm_80"),
                               row(R"({"dtype": "fp16", "head_dim": 64, "head_dim_v": 32})", 5)}),
                        "t.json");
  EXPECT_EQ(tile(tuned, {.head_dim = 64, .head_dim_v = 64, .gqa = 1, .dtype = DType::bf16, .layout_class = ""}),
            1);
  EXPECT_EQ(
      tile(tuned, {.head_dim = 128, .head_dim_v = 128, .gqa = 1, .dtype = DType::bf16, .layout_class = ""}), 2);
  EXPECT_EQ(
      tile(tuned, {.head_dim = 128, .head_dim_v = 128, .gqa = 4, .dtype = DType::bf16, .layout_class = ""}), 3);
  EXPECT_EQ(
      tile(tuned,
           {.head_dim = 64, .head_dim_v = 64, .gqa = 1, .dtype = DType::bf16, .layout_class = "many_short"}),
      4);
  EXPECT_EQ(tile(tuned, {.head_dim = 64, .head_dim_v = 32, .gqa = 1, .dtype = DType::f16, .layout_class = ""}),
            5);
  EXPECT_EQ(tile(tuned, {}, "backward"), 9);
  EXPECT_EQ(tile(tuned, {}, "forward", "sm_80"), 8);
  EXPECT_EQ(tile(tuned, {}, "other"), -1);
  EXPECT_EQ(tile(tuned, {}, "forward", "sm_100a"), -1);
}

TEST(TunedTable, AmongEqualsTheLaterRowWins) {
  const TunedTable tuned =
      TunedTable::parse(table({row(R"({"head_dim": 128})", 1), row(R"({"gqa": 4})", 2)}), "t.json");
  EXPECT_EQ(
      tile(tuned, {.head_dim = 128, .head_dim_v = 128, .gqa = 4, .dtype = DType::bf16, .layout_class = ""}), 2);
}

TEST(TunedTable, LaterFilesWinAndRowsKnowWhereTheyComeFrom) {
  const test::ScratchFolder folder;
  const std::vector<std::string> files{folder.write("a.json", table({row("{}", 1)})),
                                       folder.write("b.json", table({row("{}", 2)}))};
  const TunedTable tuned = TunedTable::load(files);
  const auto found = tuned.find("forward", "sm_90a", {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->config, (std::map<std::string, int>{{"tile_m", 2}}));
  EXPECT_EQ(found->origin, files[1] + " /rows/0");
  EXPECT_EQ(found->provenance.at("device"), "a GPU");
  EXPECT_EQ(found->provenance.at("ms"), "1.5");
}

TEST(TunedTable, ErrorsSayWhereWhatAndWhatIsAllowed) {
  const auto parse = [](const std::string& text) {
    return error_of([&] { TunedTable::parse(text, "t.json"); });
  };
  EXPECT_THAT(parse(table({row("{}", 1), row(R"({"tokens": 4096})", 2)})),
              AllOf(HasSubstr("t.json: /rows/1/match/tokens: 4096: unknown key"), HasSubstr("layout_class")));
  EXPECT_THAT(parse(table({row("{}", 1, "forward", "hopper")})),
              AllOf(HasSubstr("/rows/0/arch: \"hopper\""), HasSubstr("such as \"sm_90a\"")));
  EXPECT_THAT(parse(table({row(R"({"gqa": 0})", 1)})),
              AllOf(HasSubstr("/rows/0/match/gqa: 0"), HasSubstr(">= 1")));
  EXPECT_THAT(parse(table({row(R"({"gqa": 1})", 1), row("{}", 1), row(R"({"gqa": 1})", 2)})),
              HasSubstr("/rows/2: {\"gqa\":1} repeats kernel, arch and match of /rows/0"));
  EXPECT_THAT(parse(R"({"schema_version": 1, "rows": [{"kernel": "f", "arch": "sm_80", "match": {},
                        "config": {"tile": 1.5}, "provenance": {"device": "d", "driver": "x", "nvrtc": "y"}}]})"),
              AllOf(HasSubstr("/rows/0/config/tile: 1.5"), HasSubstr("required key \"date\" is missing")));
  EXPECT_THAT(parse(R"({"schema_version": 2})"), HasSubstr("newer"));
  EXPECT_THAT(
      error_of([] { TunedTable::load(std::vector<std::string>{"/nonexistent/t.json"}); }, ErrorCode::io_error),
      HasSubstr("tuned table (kernels.tuned) \"/nonexistent/t.json\""));
}

}  // namespace
}  // namespace bdcp::policy
