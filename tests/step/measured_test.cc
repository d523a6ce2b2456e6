// `exchange.path` auto fed by measured files: they decide, all ranks use the same, and what does not fit is
// named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "autotune/exchange_file.h"
#include "step/world.h"
#include "support/measured_file.h"

namespace bdcp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
const CallShape kShape{.heads_q = 2, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};

class MeasuredStep : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  static Runtime runtime_with(const std::string& file, const std::string& path = "auto") {
    return quiet_runtime(R"({"attention": {"backend": "host"}, "exchange": {"path": ")" + path +
                         R"(", "measured": )" + nlohmann::json(file).dump() + "}}");
  }
  static DocLayout layout(const std::vector<std::int64_t>& lengths, int world) {
    return DocLayout::from_lengths(lengths, {.world_size = world});
  }
  /// What all ranks decide.
  static Decision decide(const Runtime& runtime, const DocLayout& documents,
                         const std::vector<std::string>& hosts = {}) {
    std::vector<Decision> decisions(static_cast<std::size_t>(documents.world_size()));
    const auto errors = on_ranks(
        documents.world_size(),
        [&](int rank, Communicator comm) {
          decisions[static_cast<std::size_t>(rank)] = runtime.begin_step(documents, kShape, comm).decision();
        },
        hosts);
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (const Decision& decision : decisions) {
      EXPECT_EQ(decision.path, decisions[0].path);
      EXPECT_EQ(decision.reason, decisions[0].reason);
    }
    return decisions[0];
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("bdcp_measured_" + std::to_string(getpid()));
};

TEST_F(MeasuredStep, FilesFlipTheChoice) {
  struct Case {
    double allgather, halo, a2a;
    ExchangePath two_ranks, three_ranks;
  };
  int number = 0;
  for (const Case& c : {Case{100, 50, 50, ExchangePath::halo, ExchangePath::a2a},
                        Case{50, 100, 100, ExchangePath::allgather, ExchangePath::allgather},
                        Case{50, 20, 100, ExchangePath::halo, ExchangePath::allgather},
                        Case{50, 100, 20, ExchangePath::allgather, ExchangePath::a2a}}) {
    for (const int world : {2, 3}) {
      // One document: halo reaches over two ranks, not over three.
      const std::string file = write(
          std::to_string(number++),
          measured_file({.world = world, .allgather_us = c.allgather, .halo_us = c.halo, .a2a_us = c.a2a}));
      const Decision decision = decide(runtime_with(file), layout({60}, world));
      EXPECT_EQ(decision.path, world == 2 ? c.two_ranks : c.three_ranks) << decision.reason;
      EXPECT_THAT(decision.reason, HasSubstr("as measured"));
    }
  }
}

TEST_F(MeasuredStep, WhatDoesNotFitIsNamedOnAllRanks) {
  for (const MadeUpRow& row : {MadeUpRow{.world = 4}, MadeUpRow{.nodes = 2}, MadeUpRow{.transport = "nccl"},
                               MadeUpRow{.device = "NVIDIA H200"}}) {
    const Runtime runtime = runtime_with(write("m.json", measured_file(row)));
    const auto errors =
        on_ranks(2, [&](int, Communicator comm) { runtime.begin_step(layout({60}, 2), kShape, comm); });
    for (const std::string& error : errors)
      EXPECT_THAT(error,
                  AllOf(HasSubstr("invalid_policy"), HasSubstr("rank 0, rank 1: "),
                        HasSubstr("/exchange/measured: file"), HasSubstr("m.json"),
                        HasSubstr("nothing was measured with world 2, nodes 1, transport \"host copies in "
                                  "one process\", device \"host\"")));
  }
}

TEST_F(MeasuredStep, NobodyAsksWhereNothingIsToBeChosen) {
  const std::string file = write("m.json", measured_file({.world = 64}));
  EXPECT_EQ(decide(runtime_with(file, "allgather"), layout({60}, 2)).path, ExchangePath::allgather);
  EXPECT_EQ(runtime_with(file).begin_step(layout({60}, 1), kShape).decision().path, ExchangePath::local);
}

TEST_F(MeasuredStep, OtherContentOnOneRankIsADivergence) {
  const Runtime one = runtime_with(write("one.json", measured_file({.halo_us = 50}))),
                copy = runtime_with(write("copy.json", measured_file({.halo_us = 50}))),
                other = runtime_with(write("other.json", measured_file({.halo_us = 150})));
  for (const std::string& error : on_ranks(2, [&](int rank, Communicator comm) {
         (rank == 0 ? one : copy).begin_step(layout({60}, 2), kShape, comm);
       }))
    EXPECT_EQ(error, "");
  for (const std::string& error : on_ranks(2, [&](int rank, Communicator comm) {
         (rank == 0 ? one : other).begin_step(layout({60}, 2), kShape, comm);
       }))
    EXPECT_THAT(error, AllOf(HasSubstr("divergence"), HasSubstr("policy/exchange/measured")));
}

TEST_F(MeasuredStep, NodesAreThoseOfTheHosts) {
  const std::string file = write("m.json", measured_file({.nodes = 2}));
  const Decision decision = decide(runtime_with(file), layout({60}, 2), {"a", "b"});
  EXPECT_EQ(decision.path, ExchangePath::allgather);
  EXPECT_THAT(decision.reason, HasSubstr("not allowed across nodes"));
}

TEST_F(MeasuredStep, WhatAutotuneWritesIsTaken) {
  autotune::ExchangeTuning tuning;
  tuning.file = write("m.json", measured_file({.world = 3}));  // a row that stays
  tuning.measure = {.sizes = {4096, 64}, .iters = 2, .device = "host"};
  for (int again = 0; again < 2; ++again) {
    const auto lines = autotune::tune_exchange(tuning, autotune::Team(2));
    EXPECT_EQ(lines.size(), 6u);
    std::ifstream in(tuning.file);
    const nlohmann::json document = nlohmann::json::parse(in);
    ASSERT_EQ(document["rows"].size(), 2u);
    EXPECT_EQ(document["rows"][0]["world"], 3);
    EXPECT_EQ(document["rows"][1]["halo"][0]["bytes"], 64);
    EXPECT_EQ(document["rows"][1]["halo"][1]["bytes"], 4096);
  }
  EXPECT_THAT(decide(runtime_with(tuning.file), layout({60}, 2)).reason, HasSubstr("as measured"));
  EXPECT_THAT(decide(runtime_with(tuning.file), layout({60}, 3)).reason, HasSubstr("as measured"));
}

}  // namespace
}  // namespace bdcp::test
