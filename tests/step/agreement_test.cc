// The consensus of begin_step: whatever differs between ranks is the same named error on all of them, and no
// hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "comm/group.h"
#include "step/world.h"
#include "support/policy_fields.h"

namespace bdcp::test {
namespace {

using testing::HasSubstr;
constexpr const char* kHost = "{\"attention\": {\"backend\": \"host\"}}";
const CallShape kShape{.heads_q = 2, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};
const StepOptions kOnHost{.device = StepOptions::device_host};

DocLayout layout_of(const std::vector<std::int64_t>& lengths, int world) {
  return DocLayout::from_lengths(lengths, {.world_size = world});
}

Runtime runtime_with(const std::string& field, const std::string& value,
                     std::vector<std::string>* lines = nullptr) {
  RuntimeOptions options;
  Policy::Sources sources;
  sources.ignore_env = true;
  sources.code = {{"attention.backend", "\"host\""}};
  if (!field.empty()) sources.code.emplace_back(field, value);
  options.policy = Policy::load(sources);
  options.log_sink = [lines](PolicyValues::LogLevel, std::string_view line) {
    if (lines) lines->emplace_back(line);
  };
  return Runtime::create(std::move(options));
}

void expect_all(const std::vector<std::string>& errors, const std::vector<std::string>& words) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    for (const std::string& word : words) EXPECT_THAT(errors[rank], HasSubstr(word)) << "rank " << rank;
}

TEST(StepAgreement, EveryGroupFieldAloneIsANamedErrorAndNoLocalFieldIs) {
  const auto folder = std::filesystem::temp_directory_path() / ("bdcp_fields_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  int group = 0, local = 0;
  for (const PolicyFieldCase& field : policy_field_cases(folder.string())) {
    if (field.alternative.empty()) continue;  // the schema allows one value
    SCOPED_TRACE(field.name);
    const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
      const Runtime runtime = rank == 1 ? runtime_with(field.name, field.alternative) : runtime_with("", "");
      runtime.begin_step(layout_of({20, 10}, 3), kShape, comm, kOnHost);
    });
    if (field.group) {
      ++group;
      expect_all(errors, {"divergence", "policy" + field.pointer, "rank"});
    } else {
      ++local;
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
  EXPECT_GE(group, 12);
  EXPECT_GE(local, 5);
  std::filesystem::remove_all(folder);
}

TEST(StepAgreement, LayoutsShapesAndCountsThatDiffer) {
  expect_all(on_ranks(2,
                      [](int rank, Communicator comm) {
                        const auto layout = rank == 0 ? layout_of({20, 12}, 2) : layout_of({12, 20}, 2);
                        quiet_runtime(kHost).begin_step(layout, kShape, comm, kOnHost);
                      }),
             {"divergence", "layout", "rank"});
  expect_all(on_ranks(2,
                      [](int rank, Communicator comm) {
                        CallShape shape = kShape;
                        if (rank == 1) shape.scale = 0.25;
                        quiet_runtime(kHost).begin_step(layout_of({32}, 2), shape, comm, kOnHost);
                      }),
             {"divergence", "shapes[0]", "scale 0.25"});
  expect_all(on_ranks(2,
                      [](int rank, Communicator comm) {
                        std::vector<CallShape> shapes(rank == 0 ? 1 : 2, kShape);
                        quiet_runtime(kHost).begin_step(layout_of({32}, 2), shapes, comm, kOnHost);
                      }),
             {"divergence", "shapes"});
}

TEST(StepAgreement, AFaultOfOneRankIsNamedOnAllAndTheGroupGoesOn) {
  const auto errors = on_ranks(3, [](int rank, Communicator comm) {
    const Runtime runtime = quiet_runtime(kHost);
    std::string first;
    try {
      // A device that rank 2 does not have: nothing the ranks must agree on.
      runtime.begin_step(layout_of({30}, 3), kShape, comm,
                         {.device = rank == 2 ? 4711 : StepOptions::device_host});
    } catch (const Error& error) {
      first = error.what();
    }
    // The step failed, not the communicator.
    const Step step = runtime.begin_step(layout_of({30}, 3), kShape, comm, kOnHost);
    RankRun run(step, kShape, GlobalInputs(layout_of({30}, 3), kShape, 1), rank);
    run.forward(step);
    throw std::runtime_error(first);
  });
  expect_all(errors, {"options.device is 4711", "rank 2"});
}

TEST(StepAgreement, CallsInAnotherOrderAreNamed) {
  const auto errors = on_ranks(2, [](int rank, Communicator comm) {
    const Runtime runtime = quiet_runtime(kHost);
    const DocLayout layout = layout_of({16, 16}, 2);  // no edges: each rank's calls complete alone
    const Step step = runtime.begin_step(layout, kShape, comm, kOnHost);
    comm.group()->ledger().record(0, rank == 0 ? Direction::forward : Direction::backward, 0);
    runtime.begin_step(layout, kShape, comm, kOnHost);
  });
  expect_all(errors, {"divergence", "calls", "fwd", "bwd"});
}

TEST(StepAgreement, ASkippedCallIsNamedOnEveryPathAlsoWhereNothingCrosses) {
  for (const char* path : {"\"allgather\"", "\"halo\"", "\"a2a\""}) {
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      const Runtime runtime = runtime_with("exchange.path", path);
      const DocLayout layout = layout_of({16, 16}, 2);
      const Step step = runtime.begin_step(layout, kShape, comm, kOnHost);
      RankRun run(step, kShape, GlobalInputs(layout, kShape, 1), rank);
      run.forward(step);
      if (rank == 0) run.forward(step);  // waits for nobody
      runtime.begin_step(layout, kShape, comm, kOnHost);
    });
    expect_all(errors, {"divergence", "calls"});
  }
}

TEST(StepAgreement, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  const auto errors = on_ranks(3, [](int rank, Communicator comm) {
    const Runtime runtime = runtime_with("agreement.timeout_s", "0.3");
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
      comm.check();
      return;
    }
    runtime.begin_step(layout_of({30}, 3), kShape, comm, kOnHost);
  });
  for (int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("timeout"));
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("1"));
  }
}

TEST(StepAgreement, ALateRankIsNotADeadOne) {
  const auto errors = on_ranks(2, [](int rank, Communicator comm) {
    const Runtime runtime = runtime_with("failure.exchange_timeout_s", "0.2");
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const Step step = runtime.begin_step(layout_of({32}, 2), kShape, comm, kOnHost);
    RankRun run(step, kShape, GlobalInputs(layout_of({32}, 2), kShape, 1), rank);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(700));  // a slow forward on one rank
    run.forward(step);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StepAgreement, StepsAheadAgreeInTheOrderOfIssue) {
  const auto errors = on_ranks(3, [](int rank, Communicator comm) {
    const Runtime runtime = quiet_runtime(kHost);
    std::vector<std::future<Step>> ahead;
    for (std::int64_t i = 1; i <= 6; ++i)
      ahead.push_back(runtime.begin_step_async(layout_of({10 * i, 30}, 3), {kShape}, comm, kOnHost));
    for (std::int64_t i = 6; i >= 1; --i) {
      const Step step = ahead[static_cast<std::size_t>(i - 1)].get();
      ASSERT_EQ(step.layout().cu_q()[1], 10 * i);
      RankRun run(step, kShape, GlobalInputs(step.layout(), kShape, 1), rank);
      run.forward(step);
      run.backward(step);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StepAgreement, ReloadedGroupFieldsWaitForAllRanks) {
  const auto errors = on_ranks(2, [](int rank, Communicator comm) {
    const Runtime runtime = quiet_runtime(kHost);
    const DocLayout layout = layout_of({32}, 2);
    const auto reload = [&](const char* path) {
      Policy::Sources sources;
      sources.ignore_env = true;
      sources.code = {{"attention.backend", "\"host\""}, {"exchange.path", path}};
      runtime.reload(Policy::load(sources));
    };
    const auto path = [&] { return runtime.begin_step(layout, kShape, comm, kOnHost).decision().path; };
    reload("allgather");
    ASSERT_EQ(path(), ExchangePath::allgather);
    if (rank == 0) reload("a2a");
    ASSERT_EQ(path(), ExchangePath::allgather);  // rank 1 does not hold it yet
    if (rank == 1) reload("a2a");
    ASSERT_EQ(path(), ExchangePath::a2a);
    ASSERT_EQ(path(), ExchangePath::a2a);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StepAgreement, ADivergenceInTheFirstStepIsRepairedByReload) {
  const auto errors = on_ranks(2, [](int rank, Communicator comm) {
    const Runtime runtime = runtime_with("exchange.path", rank == 0 ? "\"halo\"" : "\"a2a\"");
    const DocLayout layout = layout_of({32}, 2);
    EXPECT_THROW(runtime.begin_step(layout, kShape, comm, kOnHost), Error);
    if (rank == 1) {
      Policy::Sources sources;
      sources.ignore_env = true;
      sources.code = {{"attention.backend", "\"host\""}, {"exchange.path", "\"halo\""}};
      runtime.reload(Policy::load(sources));
    }
    ASSERT_EQ(runtime.begin_step(layout, kShape, comm, kOnHost).decision().path, ExchangePath::halo);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(StepAgreement, AFailedCallEndsTheCommunicatorAndSaysSo) {
  std::vector<ErrorScope> scopes(2, ErrorScope::call);
  on_ranks(2, [&](int rank, Communicator comm) {
    const Runtime runtime = quiet_runtime(kHost);
    const DocLayout layout = layout_of({32}, 2);
    const Step step = runtime.begin_step(layout, kShape, comm, kOnHost);
    RankRun run(step, kShape, GlobalInputs(layout, kShape, 1), rank);
    try {
      if (rank == 0) {
        ForwardArgs args;  // no tensors at all
        step.forward(args, Stream::host());
      } else {
        run.forward(step);
      }
    } catch (const Error& error) {
      scopes[static_cast<std::size_t>(rank)] = error.scope();
      EXPECT_EQ(error.origin_rank(), 0) << error.what();
      EXPECT_FALSE(error.retryable());
    }
    EXPECT_THROW(runtime.begin_step(layout, kShape, comm, kOnHost), Error);  // at once, on both
  });
  EXPECT_EQ(scopes[0], ErrorScope::communicator);
  EXPECT_EQ(scopes[1], ErrorScope::communicator);
}

TEST(StepAgreement, FeaturesOfLaterVersionsAreRefusedByNameOnAllRanks) {
  for (const char* transport : {"\"nccl\"", "\"copy_engine\""})
    expect_all(on_ranks(2,
                        [&](int, Communicator comm) {
                          runtime_with("exchange.transport", transport)
                              .begin_step(layout_of({32}, 2), kShape, comm, kOnHost);
                        }),
               {"unsupported", "exchange.transport"});
}

TEST(StepAgreement, DowngradesFollowThePolicy) {
  // One document over three ranks cannot take the halo path.
  std::vector<std::string> lines;
  const DocLayout layout = layout_of({60}, 3);
  auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    const Runtime runtime = runtime_with("exchange.path", "\"halo\"", rank == 0 ? &lines : nullptr);
    const Step step = runtime.begin_step(layout, kShape, comm, kOnHost);
    ASSERT_EQ(step.decision().path, ExchangePath::a2a);
    runtime.begin_step(layout, kShape, comm, kOnHost);
    EXPECT_THAT(runtime.metrics_json(), HasSubstr("\"halo_infeasible\":2"));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  int logged = 0;
  for (const std::string& line : lines) logged += line.find("halo_infeasible") != std::string::npos;
  EXPECT_EQ(logged, 1);  // each distinct one once

  errors = on_ranks(3, [&](int, Communicator comm) {
    RuntimeOptions options;
    Policy::Sources sources;
    sources.ignore_env = true;
    sources.json =
        "{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"halo\"}, "
        "\"on_downgrade\": {\"halo_infeasible\": \"error\"}}";
    options.policy = Policy::load(sources);
    options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
    Runtime::create(options).begin_step(layout, kShape, comm, kOnHost);
  });
  expect_all(errors, {"downgrade_refused", "halo", "a2a", "halo_infeasible"});
}

TEST(StepAgreement, NodesAreCountedByHosts) {
  const std::vector<std::string> hosts{"a", "b"};
  const auto path = [&](const std::string& policy) {
    std::vector<Decision> decisions(2);
    const auto errors = on_ranks(
        2,
        [&](int rank, Communicator comm) {
          decisions[static_cast<std::size_t>(rank)] =
              quiet_runtime(policy).begin_step(layout_of({32}, 2), kShape, comm, kOnHost).decision();
        },
        hosts);
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(decisions[0].downgrades, decisions[1].downgrades);
    return decisions[0];
  };
  const Decision blocked = path("{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"halo\"}}");
  EXPECT_EQ(blocked.path, ExchangePath::allgather);
  bool named = false;
  for (const Downgrade& d : blocked.downgrades) named |= d.code == "cross_node";
  EXPECT_TRUE(named);
  EXPECT_EQ(path("{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"halo\", \"cross_node\": "
                 "\"needed_only\"}}")
                .path,
            ExchangePath::halo);
  EXPECT_EQ(
      path(
          "{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"halo\", \"ranks_per_node\": 2}}")
          .path,
      ExchangePath::halo);
}

}  // namespace
}  // namespace bdcp::test
