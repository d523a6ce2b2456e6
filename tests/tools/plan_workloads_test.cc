// Packs by name and lists from text, as all programs read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "common/cli.h"
#include "common/workloads.h"
#include "support/expect_error.h"

namespace bdcp::tools {
namespace {

using test::expect_error;
using Lengths = std::vector<std::int64_t>;

std::int64_t sum(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

TEST(Packs, NamesCarryTheirTokens) {
  const std::vector<std::string> names = pack_names();
  int production = 0;
  for (const std::string& name : names) {
    const Lengths lengths = find_pack(name);
    ASSERT_FALSE(lengths.empty()) << name;
    EXPECT_GT(*std::min_element(lengths.begin(), lengths.end()), 0) << name;
    if (name.starts_with("prod")) {
      EXPECT_EQ(sum(lengths), std::stoll(name.substr(4))) << name;
      ++production;
    }
    if (name.starts_with("cp2_")) {
      EXPECT_EQ(sum(lengths), 65536) << name;
    }
    if (name.starts_with("ring_flash")) {
      EXPECT_EQ(sum(lengths), 8192) << name;
    }
  }
  EXPECT_EQ(production, 12);
  EXPECT_EQ(find_pack("prod8192_0").size(), 15u);
  EXPECT_EQ(find_pack("cp2_straddle"), (Lengths{28672, 8192, 28672}));
  EXPECT_EQ(find_pack("cp2_lognorm").size(), 64u);
  EXPECT_EQ(find_pack("R2_L8192_1").front(), 520);
}

TEST(Packs, GeneratedNames) {
  EXPECT_EQ(find_pack("u300"), Lengths(109, 300));
  EXPECT_EQ(find_pack("u7"), Lengths(4681, 7));
  EXPECT_EQ(find_pack("one16k"), Lengths{16384});
  EXPECT_EQ(find_pack("one1000"), Lengths{1000});
  EXPECT_EQ(find_pack("one3k"), Lengths{3072});
  for (const char* name :
       {"", "u", "u0", "u32769", "u-4", "one", "onek", "one0", "one-4k", "one9999999999", "prod8192_x"}) {
    expect_error(ErrorCode::invalid_argument, {name, "closest"}, [&] { find_pack(name); });
  }
}

TEST(Lists, LengthsMayRepeat) {
  EXPECT_EQ(parse_lengths("5,3x2, 7 ,2x0"), (Lengths{5, 3, 3, 7}));
  EXPECT_EQ(parse_lengths(""), Lengths{});
  EXPECT_EQ(parse_lengths("-4"), Lengths{-4});  // a list; whether it is a layout is the layout's business
  for (const char* text :
       {",", "1,", "x", "1x", "x2", "1x-2", "1x2x3", "1.5", "1 2", "99999999999999999999", "1x67108865"}) {
    expect_error(ErrorCode::invalid_argument, {"lengths: entry", "allowed"}, [&] { parse_lengths(text); });
  }
  expect_error(ErrorCode::invalid_argument, {"--doc-ids: entry 1 is \"2x3\""},
               [] { parse_integers("1,2x3", "--doc-ids"); });
}

TEST(ExitCodes, FollowTheErrorCode) {
  EXPECT_EQ(exit_code(Error(ErrorCode::invalid_layout, "")), exit_invalid_input);
  EXPECT_EQ(exit_code(Error(ErrorCode::library_missing, "")), exit_environment);
  EXPECT_EQ(exit_code(Error(ErrorCode::internal, "")), exit_check_failed);
  EXPECT_EQ(run_tool("t", []() -> int { throw Error(ErrorCode::unsupported, "x"); }), exit_invalid_input);
  EXPECT_EQ(run_tool("t", []() -> int { throw std::bad_alloc(); }), exit_environment);
  EXPECT_EQ(run_tool("t", []() -> int { throw std::runtime_error("x"); }), exit_check_failed);
  EXPECT_EQ(run_tool("t", [] { return 0; }), exit_ok);
}

}  // namespace
}  // namespace bdcp::tools
