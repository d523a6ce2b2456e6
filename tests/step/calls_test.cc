// Steps as objects: several alive, several threads, calls that are not theirs, counters.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "step/world.h"
#include "support/expect_error.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

constexpr const char* kHost = "{\"attention\": {\"backend\": \"host\"}}";
const CallShape kShape{.heads_q = 4, .heads_kv = 2, .head_dim = 8, .dtype = DType::f32};

DocLayout layout_of(const std::vector<std::int64_t>& lengths, int world = 1) {
  return DocLayout::from_lengths(lengths, {.world_size = world});
}

TEST(StepCalls, LiveStepsOfEqualSizeKeepTheirBoundaries) {
  const std::vector<std::vector<std::int64_t>> packs{{64}, {1, 63}, {32, 32}, {20, 24, 20}};
  for (int world : {1, 2}) {
    std::vector<GlobalResults> want;
    for (const auto& lengths : packs)
      want.push_back(
          run_world(layout_of(lengths, world), kShape, GlobalInputs(layout_of(lengths, world), kShape, 1)));
    const auto errors = on_ranks(world, [&](int rank, Communicator comm) {
      const Runtime runtime = quiet_runtime(kHost);
      std::vector<Step> steps;
      std::vector<RankRun> runs;
      for (const auto& lengths : packs) {
        const DocLayout layout = layout_of(lengths, world);
        steps.push_back(runtime.begin_step(layout, kShape, comm, {.device = StepOptions::device_host}));
        runs.emplace_back(steps.back(), kShape, GlobalInputs(layout, kShape, 1), rank);
        runs.back().forward(steps.back());
      }
      // Backward in another order, dropping each step as it ends, the oldest last.
      for (std::size_t i : {2u, 1u, 3u, 0u}) {
        runs[i].backward(steps[i]);
        const std::int64_t local = steps[i].layout().local_tokens();
        for (std::int64_t t = 0; t < local; ++t)
          for (int d = 0; d < 8; ++d) {
            ASSERT_EQ(runs[i].out.at(t, 3, d), want[i].out.at(rank * local + t, 3, d));
            ASSERT_EQ(runs[i].dk.at(t, 1, d), want[i].dk.at(rank * local + t, 1, d));
          }
        steps[i] = steps[0];
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(StepCalls, OneStepFromSeveralThreads) {
  const DocLayout layout = layout_of({30, 1, 50, 9});
  const Runtime runtime = quiet_runtime(kHost);
  const Step step = runtime.begin_step(layout, kShape);
  std::vector<GlobalResults> want;
  for (std::uint64_t t = 0; t < 4; ++t)
    want.push_back(run_world(layout, kShape, GlobalInputs(layout, kShape, t)));
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const GlobalInputs inputs(layout, kShape, t);
      int good = 0;
      for (int i = 0; i < 5; ++i) {
        RankRun run(step, kShape, inputs, 0);
        run.forward(step);
        run.backward(step);
        good += run.out.same_bits(want[t].out) && run.dq.same_bits(want[t].dq) &&
                run.dk.same_bits(want[t].dk) && run.dv.same_bits(want[t].dv);
      }
      same[t] = good;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<int>(4, 5));
  EXPECT_EQ(step.forward_calls(), 20u);
  EXPECT_EQ(step.backward_calls(), 20u);
}

ForwardArgs args_of(RankRun& run, Scratch& scratch) {
  ForwardArgs args;
  args.q = run.q.view();
  args.k = run.k.view();
  args.v = run.v.view();
  args.out = run.out.view();
  args.lse = run.lse.view();
  args.workspace = scratch.view();
  return args;
}

TEST(StepCalls, CallsThatAreNotTheSteps) {
  const DocLayout layout = layout_of({30, 34});
  const Runtime runtime = quiet_runtime(kHost);
  const Step step = runtime.begin_step(layout, kShape);
  RankRun run(step, kShape, GlobalInputs(layout, kShape, 1), 0);
  Scratch scratch(step.workspace().forward);
  const ForwardArgs good = args_of(run, scratch);
  EXPECT_FALSE(step.why_not_mine(good, Stream::host()));

  const auto code = [&](auto change, Stream stream = Stream::host()) {
    ForwardArgs args = good;
    change(args);
    const auto why = step.why_not_mine(args, stream);
    return why ? why->code : std::string();
  };
  EXPECT_EQ(code([](ForwardArgs& a) { a.q.tokens = 63; }), "tokens");
  EXPECT_EQ(code([](ForwardArgs& a) { a.k.tokens = 65; }), "tokens");
  EXPECT_EQ(code([](ForwardArgs& a) { a.q.heads = 8; }), "shape");
  EXPECT_EQ(code([](ForwardArgs& a) { a.out.heads = 3; }), "heads");
  EXPECT_EQ(code([](ForwardArgs& a) { a.out.dim = 9; }), "head_dim");
  EXPECT_EQ(code([](ForwardArgs& a) { a.v.dtype = DType::f16; }), "dtype");
  EXPECT_EQ(code([](ForwardArgs& a) { a.k.data = nullptr; }), "null");
  EXPECT_EQ(code([](ForwardArgs& a) { a.lse.tokens = 5; }), "lse");
  EXPECT_EQ(code([](ForwardArgs& a) { a.shape = 1; }), "shape");
  EXPECT_EQ(code([](ForwardArgs&) {}, Stream::cuda(nullptr, 0)), "device");

  ForwardArgs wrong = good;
  wrong.q.tokens = 63;
  expect_error(ErrorCode::invalid_argument, {"q.tokens is 63", "64"},
               [&] { step.forward(wrong, Stream::host()); });
  ForwardArgs alias = good;
  alias.out = run.q.view();
  expect_error(ErrorCode::invalid_argument, {"out aliases q"}, [&] { step.forward(alias, Stream::host()); });
  const auto metrics = nlohmann::json::parse(runtime.metrics_json());
  EXPECT_EQ(metrics["not_mine"]["tokens"], 3);
  EXPECT_EQ(metrics["not_mine"]["device"], 1);
  EXPECT_EQ(metrics["forward_calls"], 0);
  step.forward(good, Stream::host());
  EXPECT_EQ(nlohmann::json::parse(runtime.metrics_json())["forward_calls"], 1);
}

TEST(StepCalls, ExposedExchangeIsReported) {
  struct Case {
    const char* policy;
    std::uint64_t backward_waits;
  };
  for (const Case& c :
       {Case{R"({"attention": {"backend": "host"}, "exchange": {"path": "halo"}})", 2},  // K/V again, partials
        Case{R"({"attention": {"backend": "host"}, "exchange": {"path": "a2a", "backward_kv": "keep"}})", 1},
        Case{R"({"attention": {"backend": "host"}, "exchange": {"path": "allgather"}})", 2}}) {
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      const Runtime runtime = quiet_runtime(c.policy);
      const Step step = runtime.begin_step(layout_of({40}, 2), kShape, comm);
      RankRun run(step, kShape, GlobalInputs(layout_of({40}, 2), kShape, 1), rank);
      EXPECT_EQ(step.exposed_exchange().forward_waits, 0u);
      run.forward(step);
      run.forward(step);
      run.backward(step);
      const ExposedExchange exposed = step.exposed_exchange();
      EXPECT_EQ(exposed.forward_waits, 2u);
      EXPECT_EQ(exposed.backward_waits, c.backward_waits);
      EXPECT_GT(exposed.forward_us, 0);
      EXPECT_GT(exposed.backward_us, 0);
      EXPECT_EQ(exposed.untimed_waits, 0u);
      const auto metrics = nlohmann::json::parse(runtime.metrics_json())["exchange"];
      EXPECT_EQ(metrics["forward_waits"], 2);
      EXPECT_EQ(metrics["exposed_backward_us"], exposed.backward_us);
      // Nothing travels between documents that end with their rank.
      const Step apart = runtime.begin_step(layout_of({20, 20}, 2), kShape, comm);
      RankRun alone(apart, kShape, GlobalInputs(layout_of({20, 20}, 2), kShape, 1), rank);
      alone.forward(apart);
      EXPECT_EQ(apart.exposed_exchange().forward_waits, 0u);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

TEST(StepCalls, WorkspaceIsCheckedAtWorldTwo) {
  const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    const DocLayout layout = layout_of({40}, 2);
    const Runtime runtime = quiet_runtime(kHost);
    const Step step = runtime.begin_step(layout, kShape, comm);
    if (rank == 1) {
      ASSERT_GT(step.workspace().forward, 0u);
    }
    RankRun run(step, kShape, GlobalInputs(layout, kShape, 1), rank);
    Scratch scratch(step.workspace().forward);
    ForwardArgs args = args_of(run, scratch);
    if (rank == 1) args.workspace.bytes -= 1;
    step.forward(args, Stream::host());
  });
  // The rank with the fault says what is wrong; the other is told instead of waiting for it.
  EXPECT_NE(errors[1].find("workspace has"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("workspace has"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

TEST(StepCalls, SeveralShapes) {
  const CallShape wide{.heads_q = 2, .heads_kv = 1, .head_dim = 16, .dtype = DType::f32};
  CallShape sharp = kShape;
  sharp.scale = 2.0;
  const std::vector<CallShape> shapes{kShape, wide, sharp};
  const DocLayout layout = layout_of({30, 34});
  const Runtime runtime = quiet_runtime(kHost);
  const Step step = runtime.begin_step(layout, shapes);
  RankRun run(step, wide, GlobalInputs(layout, wide, 1), 0);
  run.forward(step);
  EXPECT_TRUE(run.out.same_bits(run_world(layout, wide, GlobalInputs(layout, wide, 1)).out));
  // Two shapes differ in scale alone: the call has to say which.
  RankRun other(step, sharp, GlobalInputs(layout, sharp, 1), 0);
  Scratch scratch(step.workspace().forward);
  ForwardArgs args = args_of(other, scratch);
  EXPECT_EQ(step.why_not_mine(args, Stream::host()).value().code, "shape");
  args.shape = 2;
  step.forward(args, Stream::host());
  EXPECT_TRUE(other.out.same_bits(run_world(layout, sharp, GlobalInputs(layout, sharp, 1)).out));
}

TEST(StepCalls, ForwardOnlyShapeHasNoBackward) {
  CallShape shape = kShape;
  shape.backward = false;
  const DocLayout layout = layout_of({8});
  const Runtime runtime = quiet_runtime(kHost);
  const Step step = runtime.begin_step(layout, shape);
  RankRun run(step, shape, GlobalInputs(layout, shape, 1), 0);
  run.forward(step);
  expect_error(ErrorCode::invalid_argument, {"backward = false"}, [&] { run.backward(step); });
}

TEST(StepCalls, BadShapesNameTheField) {
  const Runtime runtime = quiet_runtime(kHost);
  const auto refuse = [&](const std::string& words, auto change) {
    CallShape shape = kShape;
    change(shape);
    expect_error(ErrorCode::invalid_argument, {words}, [&] { runtime.begin_step(layout_of({8}), shape); });
  };
  refuse("shapes[0].heads_q is 5", [](CallShape& s) { s.heads_q = 5; });
  refuse("shapes[0].heads_kv is 0", [](CallShape& s) { s.heads_kv = 0; });
  refuse("shapes[0].head_dim is 0", [](CallShape& s) { s.head_dim = 0; });
  refuse("shapes[0].scale is 0", [](CallShape& s) { s.scale = 0.0; });
  refuse("shapes[0].scale is nan", [](CallShape& s) { s.scale = std::numeric_limits<double>::quiet_NaN(); });
  refuse("shapes[0].dropout_p is 1", [](CallShape& s) { s.dropout_p = 1.0; });
  expect_error(ErrorCode::invalid_argument, {"shapes is empty"},
               [&] { runtime.begin_step(layout_of({8}), std::vector<CallShape>{}); });
  expect_error(ErrorCode::invalid_argument, {"world_size() is 2", "1 ranks"},
               [&] { runtime.begin_step(layout_of({8}, 2), kShape); });
}

TEST(StepCalls, RequiredKernelsNameEveryKernel) {
  const Runtime runtime = quiet_runtime(kHost);
  const CallShape half{.heads_q = 8, .heads_kv = 2, .head_dim = 64, .dtype = DType::bf16};
  const auto all = runtime.required_kernels({&half, 1});
  ASSERT_FALSE(all.empty());
  bool forward = false, reduce = false;
  for (const KernelInfo& info : all) {
    EXPECT_EQ(info.arch, "sm_90a");
    EXPECT_EQ(info.key.size(), 32u);
    forward |= info.kernel.find("forward") != std::string::npos;
    reduce |= info.kernel.find("reduce") != std::string::npos;
  }
  EXPECT_TRUE(forward);
  EXPECT_TRUE(reduce);
  EXPECT_LT(runtime.required_kernels({&half, 1}, {.arch = "sm_90a", .distributed = false}).size(), all.size());
}

TEST(StepCalls, RequiredKernelsFollowTheGroupsOfThePolicy) {
  const CallShape half{.heads_q = 8, .heads_kv = 2, .head_dim = 64, .dtype = DType::bf16};
  const auto reductions = [&](const std::string& groups) {
    const Runtime runtime = quiet_runtime(R"({"schema_version": 1, "groups": [)" + groups + "]}");
    int count = 0;
    for (const KernelInfo& info : runtime.required_kernels({&half, 1}))
      count += info.kernel.find("reduce") != std::string::npos;
    return count;
  };
  EXPECT_EQ(reductions(""), 1);
  EXPECT_EQ(reductions(R"({"match": {"min_world": 9}, "set": {"exchange": {"grad_payload": "input"}}})"), 2);
}

}  // namespace
}  // namespace bdcp::test
