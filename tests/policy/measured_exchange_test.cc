#include "policy/measured_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"
#include "support/measured_file.h"

namespace bdcp::policy {
namespace {

using test::error_of;
using test::from_code;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

TEST(MeasuredExchange, RowsAreFoundByWhatTheyWereMeasuredWith) {
  const MeasuredExchange measured = MeasuredExchange::parse(test::measured_file({.halo_us = 7.5}), "m.json");
  const MeasuredRow& row = measured.at({2, 1, "host copies in one process", "host"});
  EXPECT_THAT(row.halo, ElementsAre(Pair(1, 7.5), Pair(1000000000, 7.5)));
  EXPECT_THAT(row.allgather, ElementsAre(Pair(1, 100), Pair(1000000000, 100)));
  for (const MeasuredSetting& other :
       {MeasuredSetting{3, 1, "host copies in one process", "host"},
        MeasuredSetting{2, 2, "host copies in one process", "host"}, MeasuredSetting{2, 1, "nccl", "host"},
        MeasuredSetting{2, 1, "host copies in one process", "NVIDIA H200"}})
    EXPECT_THAT(error_of([&] { (void)measured.at(other); }),
                AllOf(HasSubstr("m.json: nothing was measured with " + to_text(other)),
                      HasSubstr("the file has: world 2, nodes 1, transport \"host copies in one process\"")));
}

TEST(MeasuredExchange, TransportsCountWithoutTheirVersion) {
  EXPECT_EQ(transport_kind("nccl 2.28.9"), "nccl");
  EXPECT_EQ(transport_kind("nccl"), "nccl");
  EXPECT_EQ(transport_kind("host copies in one process"), "host copies in one process");
  EXPECT_EQ(transport_kind(""), "");
}

TEST(MeasuredExchange, WhatIsWrongIsNamed) {
  const std::string good = test::measured_file();
  const auto refused = [](const std::string& text) {
    return error_of([&] { (void)MeasuredExchange::parse(text, "m.json"); });
  };
  EXPECT_THAT(refused("{}"), AllOf(HasSubstr("m.json"), HasSubstr("schema_version")));
  EXPECT_THAT(refused("["), HasSubstr("m.json"));
  EXPECT_THAT(refused(replaced(good, "\"schema_version\": 1", "\"schema_version\": 2")),
              HasSubstr("schema_version"));
  EXPECT_THAT(refused(replaced(good, "\"world\": 2", "\"world\": 1")), HasSubstr("/rows/0/world: 1"));
  EXPECT_THAT(refused(replaced(good, "\"halo\"", "\"hallo\"")), HasSubstr("hallo"));
  EXPECT_THAT(refused(replaced(good, "\"us\": 100.000000", "\"us\": 0")),
              HasSubstr("/rows/0/allgather/0/us: 0"));
  EXPECT_THAT(refused(replaced(good, "\"bytes\": 1,", "\"bytes\": 1000000000,")),
              AllOf(HasSubstr("m.json: /rows/0/allgather/1/bytes: 1000000000 comes after 1000000000"),
                    HasSubstr("allowed: ascending sizes")));
  const std::size_t row = good.find("{\"world\""), end = good.rfind("]}");
  const std::string twice = good.substr(0, end) + "," + good.substr(row, end - row) + "]}";
  EXPECT_THAT(refused(twice), AllOf(HasSubstr("m.json: /rows/1: world 2"), HasSubstr("repeats /rows/0")));
}

TEST(MeasuredExchange, APolicyReadsItsFileOnceAndNamesTheField) {
  const test::ScratchFolder folder;
  const std::string file = folder.write("m.json", test::measured_file({.halo_us = 3}));
  const Policy policy = from_code({{"exchange.measured", file}});
  folder.write("m.json", "gone");  // what ranks compare and what they use must not come apart
  ASSERT_NE(policy.measured(), nullptr);
  EXPECT_EQ(policy.measured()->rows().front().halo.front().second, 3);
  EXPECT_EQ(Policy().measured(), nullptr);
  EXPECT_THAT(error_of([&] {
                from_code({{"exchange.measured", file}});
              }),
              AllOf(HasSubstr("code: /exchange/measured: file \""), HasSubstr("m.json")));
}

TEST(MeasuredExchange, GroupsMayHaveFilesOfTheirOwn) {
  const test::ScratchFolder folder;
  const std::string file = folder.write("m.json", test::measured_file());
  const Policy policy = test::from_json(R"({"groups": [
    {"match": {"name": "a"}, "set": {"exchange": {"measured": ")" +
                                        file + R"("}}},
    {"match": {"name": "a", "world": 4}, "set": {"exchange": {"measured": null}}}]})");
  EXPECT_NE(policy.measured({"a", 2, 1}), nullptr);
  EXPECT_EQ(policy.measured({"a", 4, 1}), nullptr);
  EXPECT_EQ(policy.measured({"b", 2, 1}), nullptr);
}

}  // namespace
}  // namespace bdcp::policy
