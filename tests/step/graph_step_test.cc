// Steps whose captured calls serve later layouts, over the fake libcuda. Kernels are compiled, but never run.
#include <barrier>
#include <mutex>
#include <string>
#include <vector>

#include "step/fake_gpu_step.h"
#include "support/expect_error.h"

namespace bdcp::test {
namespace {

using Lengths = std::vector<std::int64_t>;
constexpr std::int64_t kTokens = 1367;

class GraphStep : public FakeGpuStep {
 protected:
  void SetUp() override {
    FakeGpuStep::SetUp();
    shapes_[1].backward = false;
  }
  /// Padded to kTokens.
  static DocLayout layout(const Lengths& lengths) {
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths) tokens += length;
    return DocLayout::from_lengths(lengths, {.world_size = 1, .padding_tokens = kTokens - tokens});
  }
  Step first(std::int64_t documents = 16) {
    return runtime_->begin_step(layout_, shapes_, {}, {.graph_documents = documents});
  }
  Step next(const Step& step, const DocLayout& layout) {
    return runtime_->begin_step(layout, shapes_, {}, {.reuse = step});
  }
  void run_all(const Step& step) {
    next_ = std::uintptr_t{1} << 40;  // the same tensors every time
    for (const int shape : {0, 1}) run(step, shape);
  }
  void capture(const Step& step) {
    call<void(int)>("fake_capture")(1);
    run_all(step);
    call<void(int)>("fake_capture")(0);
  }
  static std::string why(const Step& step) { return step.recapture() ? step.recapture()->code : std::string(); }
  bool reference() const { return std::string(GetParam()) == "reference"; }

  const Stream stream_ = Stream::cuda(nullptr, 0);
  /// Of the same kind as layout_: most rows in documents of 128 to 1023.
  const std::vector<Lengths> mixed_{{1000, 300, 67},
                                    {kTokens - 300, 300},
                                    {500, 3, 500, 200, 100, 64},
                                    {900, 400},
                                    {128, 128, 128, 128, 128, 128, 128, 128, 128, 128},
                                    {700, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 640}};
  const Lengths short_ = Lengths(13, 100);
};

// What a graph holds of a call is as good for every layout of the class.
TEST_P(GraphStep, LaunchesAreTheSameForEveryLayout) {
  for (const char* more : {"", R"(, "deterministic": true)"}) {
    runtime_.emplace(quiet_runtime(policy(more)));
    Step step = first();
    for (const Lengths& lengths : mixed_) {
      step.refill(stream_);
      call<void()>("fake_keep_launches")();
      run_all(step);
      const Step later = next(step, layout(lengths));
      ASSERT_EQ(why(later), "") << ::testing::PrintToString(lengths) << ": " << later.recapture()->text;
      later.refill(stream_);
      run_all(later);
      EXPECT_GE(call<int()>("fake_launched_twice")(), 8) << ::testing::PrintToString(lengths);
      EXPECT_EQ(later.workspace().forward, step.workspace().forward);
      EXPECT_EQ(later.workspace().backward, step.workspace().backward);
      step = later;  // any step of the class will do
    }
  }
}

// The other way round: what the test above compares does depend on the layout of ordinary steps.
TEST_P(GraphStep, LaunchesOfOrdinarySteps) {
  call<void()>("fake_keep_launches")();
  for (const DocLayout& each : {layout(mixed_[0]), layout(mixed_[4])})
    run_all(runtime_->begin_step(each, shapes_));
  EXPECT_EQ(call<int()>("fake_launched_twice")(), -1);
}

TEST_P(GraphStep, RefillsCopyOnceAndTurnsAllocateNothing) {
  const Step step = first();
  capture(step);
  const auto turn = [&](std::size_t i) {
    const Step later = next(step, layout(mixed_[i % mixed_.size()]));
    const int before = copies();
    later.refill(stream_);
    EXPECT_EQ(copies(), before + 1);
  };
  for (std::size_t i = 0; i < 4; ++i) turn(i);
  const int allocated = allocations(), waited = waits(), copied = copies();
  for (std::size_t i = 0; i < 12; ++i) turn(i);
  EXPECT_EQ(copies(), copied + 12);  // beginning such a step copies nothing
  EXPECT_EQ(allocations(), allocated);
  EXPECT_EQ(waits(), waited);
}

TEST_P(GraphStep, CallsOfStepsThatAreNotThereThrow) {
  const Step step = first(), later = next(step, layout(mixed_[0]));
  expect_error(ErrorCode::invalid_argument, {"another step", "refill"}, [&] { run_all(later); });
  later.refill(stream_);
  run_all(later);
  expect_error(ErrorCode::invalid_argument, {"another step", "refill"}, [&] { run_all(step); });
  step.refill(stream_);
  run_all(step);
}

TEST_P(GraphStep, RecapturesSayWhy) {
  const Step step = first();
  capture(step);
  EXPECT_EQ(why(step), "");
  EXPECT_EQ(why(next(step, DocLayout::from_lengths(Lengths{1000, 300}))), "tokens");
  EXPECT_EQ(why(next(step, layout(short_))), reference() ? "" : "kernels");
  const std::vector<CallShape> fewer{shapes_[0]};
  EXPECT_EQ(why(runtime_->begin_step(layout_, fewer, {}, {.reuse = step})), "shapes");
  if (std::string(GetParam()) != "hopper") {  // device 1 is an sm_86
    EXPECT_EQ(why(runtime_->begin_step(layout_, shapes_, {}, {.device = 1, .reuse = step})), "device");
  }
  Policy::Sources sources;
  sources.ignore_env = true;
  sources.code = {{"attention.backend", reference() ? "portable" : "reference"}};
  runtime_->reload(Policy::load(sources));
  const Step other = next(step, layout_);
  EXPECT_EQ(why(other), "backend");
  EXPECT_NE(
      runtime_->metrics_json().find(std::string(R"("recaptures":)") +
                                    std::to_string(3 + !reference() + (std::string(GetParam()) != "hopper"))),
      std::string::npos)
      << runtime_->metrics_json();
}

TEST_P(GraphStep, MoreDocumentsThanThereIsRoomFor) {
  const Step step = first(5);
  capture(step);
  const Step same = next(step, layout({500, 400, 200, 100, 167})), more = next(step, layout(mixed_.back()));
  EXPECT_EQ(why(same), "");
  EXPECT_EQ(why(more), "documents");
  // A graph of `step` would go on with the old lists.
  expect_error(ErrorCode::invalid_argument, {"captured first", "documents", "16", "5"},
               [&] { more.refill(stream_); });
  run_all(more);  // uploaded like any step
  capture(more);
  const Step later = next(more, layout(mixed_[2]));
  EXPECT_EQ(why(later), "");
  later.refill(stream_);
  more.refill(stream_);
  run_all(more);
}

TEST_P(GraphStep, StepsBeginAndAreCapturedWhateverIsUnderWay) {
  call<void(int)>("fake_hold_events")(1);
  const Step step = first(), plain = begin();
  call<void(int)>("fake_hold_events")(0);
  const int waited = calls({"cuStreamWaitEvent"});
  capture(step);
  capture(plain);
  EXPECT_EQ(calls({"cuStreamWaitEvent"}), waited);
  call<void(int)>("fake_capture")(1);
  const Step later = next(step, layout(mixed_[1])), unrelated = begin();
  expect_error(ErrorCode::invalid_argument, {"refill", "captured"}, [&] { later.refill(stream_); });
  call<void(int)>("fake_capture")(0);
  later.refill(stream_);
}

// Two ranks of one process: the call is refused on both, and nothing is enqueued.
TEST_P(GraphStep, AnExchangeIsNotCaptured) {
  layout_ = DocLayout::from_lengths(Lengths{1000, 300}, {.world_size = 2});
  std::barrier both(2);
  std::mutex mutex;
  const int launched = calls({"cuLaunchKernel"});
  const auto errors = on_ranks(2, [&](int, const Communicator& comm) {
    const Step step = runtime_->begin_step(layout_, shapes_, comm);
    both.arrive_and_wait();
    const std::lock_guard lock(mutex);  // tensors are handed out one by one
    call<void(int)>("fake_capture")(1);
    run(step, 0);
  });
  call<void(int)>("fake_capture")(0);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("exchange cannot be captured"), std::string::npos) << error;
    EXPECT_NE(error.find("world size 1"), std::string::npos) << error;
  }
  EXPECT_EQ(calls({"cuLaunchKernel"}), launched);
}

TEST_P(GraphStep, RefusesByName) {
  expect_error(ErrorCode::invalid_argument, {"graph_documents", "3", "5"}, [&] { first(3); });
  expect_error(ErrorCode::invalid_argument, {"graph_documents", "-1"}, [&] { first(-1); });
  const Step plain = begin();
  expect_error(ErrorCode::invalid_argument, {"options.reuse", "graph_documents"},
               [&] { next(plain, layout_); });
  expect_error(ErrorCode::invalid_argument, {"refill", "graph_documents"}, [&] { plain.refill(stream_); });
  const Step step = first();
  expect_error(ErrorCode::invalid_argument, {"refill", "device 1", "device 0"},
               [&] { step.refill(Stream::cuda(nullptr, 1)); });
}

INSTANTIATE_TEST_SUITE_P(Backends, GraphStep, ::testing::Values("hopper", "portable", "reference"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace bdcp::test
