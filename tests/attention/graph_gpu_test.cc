// Calls captured into CUDA graphs: replays give the bits of eager calls, for later layouts too.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "attention/step_caller.h"
#include "device/dynamic_library.h"
#include "support/layouts.h"

namespace bdcp::test {
namespace {

constexpr std::int64_t kTokens = 1536, kDocuments = 60;
constexpr int kLayouts = 20;

/// The driver's functions for graphs, which the library itself does not need.
class Graphs {
 public:
  explicit Graphs(device::Device& device) : device_(device) {
    std::string why;
    library_ = device::DynamicLibrary::open({"libcuda.so.1"}, "", {}, &why);  // the one that is loaded
    EXPECT_TRUE(library_) << why;
  }
  /// What `body` enqueues on `stream`, captured in global mode and instantiated.
  void* capture(void* stream, const std::function<void()>& body) const {
    void *graph = nullptr, *runnable = nullptr;
    device_.in_context([&] {
      check("begin", function<int(void*, int)>("cuStreamBeginCapture_v2")(stream, 0));
      body();
      check("end", function<int(void*, void**)>("cuStreamEndCapture")(stream, &graph));
      check("instantiate", function<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(
                               &runnable, graph, 0));
      check("destroy", function<int(void*)>("cuGraphDestroy")(graph));
    });
    return runnable;
  }
  void launch(void* runnable, void* stream) const {
    device_.in_context(
        [&] { check("launch", function<int(void*, void*)>("cuGraphLaunch")(runnable, stream)); });
  }
  void destroy(void* runnable) const {
    device_.in_context([&] { check("destroy", function<int(void*)>("cuGraphExecDestroy")(runnable)); });
  }

 private:
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(library_->symbol(name));
  }
  static void check(const char* what, int result) { ASSERT_EQ(result, 0) << what; }
  device::Device& device_;
  std::shared_ptr<const device::DynamicLibrary> library_;
};

/// A captured forward and backward of one caller's tensors.
class Replay {
 public:
  Replay(const Graphs& graphs, Caller& caller, const Step& step) : graphs_(graphs), caller_(caller) {
    runnable_ = graphs_.capture(caller.stream().handle, [&] { caller.call(step, true); });
  }
  ~Replay() { graphs_.destroy(runnable_); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  void launch() { graphs_.launch(runnable_, caller_.stream().handle); }
  const Outputs& fresh() {
    caller_.poison();
    launch();
    return caller_.fetch();
  }

 private:
  const Graphs& graphs_;
  Caller& caller_;
  void* runnable_ = nullptr;
};

/// Whose lengths are most of a class's rows.
enum class Kind { mixed, brief };

Case case_of(const CallShape& shape, Kind kind, std::uint64_t seed) {
  RandomLayouts random(seed);
  std::vector<std::int64_t> lengths;
  std::int64_t left = kTokens - random.uniform(0, 200);
  if (kind == Kind::mixed) {
    lengths.push_back(random.uniform(300, 900));
    for (std::int64_t i = random.uniform(0, 5); i > 0; --i) lengths.push_back(random.uniform(1, 20));
    for (const std::int64_t length : lengths) left -= length;
    while (left >= 256) {
      lengths.push_back(random.uniform(128, std::min<std::int64_t>(left - 128, 500)));
      left -= lengths.back();
    }
    lengths.push_back(left);
  } else {
    while (left > 0 && static_cast<std::int64_t>(lengths.size()) < kDocuments) {
      lengths.push_back(std::min(left, random.uniform(20, 100)));
      left -= lengths.back();
    }
  }
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += length;
  Case c;
  c.layout = from_lengths(lengths, kTokens - tokens, "graph");
  c.shape = shape;
  c.seed = seed;
  return c;
}

class GraphGpu : public StepGpu {
 protected:
  void SetUp() override {
    StepGpu::SetUp();
    if (!IsSkipped()) graphs_.emplace(*device_);
  }
  Step first(const Runtime& runtime, const Case& c) {
    return begin(runtime, c, {.graph_documents = kDocuments});
  }
  Step next(const Runtime& runtime, const Case& c, const Step& step) {
    Step later = begin(runtime, c, {.reuse = step});
    EXPECT_FALSE(later.recapture()) << describe(c) << ": " << later.recapture()->text;
    return later;
  }
  /// An ordinary step's results; gradients of hopper, whose backward may group sums otherwise in a graph class,
  /// are those of a class of its own.
  Outputs eager(const Runtime& runtime, const Case& c, const Data& data) {
    const Step step = begin(runtime, c);
    Outputs outputs = Caller(device_, step, c, data).fresh(step);
    if (GetParam() != BackendKind::hopper) return outputs;
    const Step own = first(runtime, c);
    const Outputs of_class = Caller(device_, own, c, data).fresh(own);
    outputs.dq = of_class.dq;
    outputs.dk = of_class.dk;
    outputs.dv = of_class.dv;
    return outputs;
  }
  void expect_same(const Outputs& a, const Outputs& b, bool with_dq) {
    EXPECT_TRUE(a.out.same_bits(b.out)) << "out";
    EXPECT_TRUE(same_bits(a.lse, b.lse, 0, kTokens)) << "lse";
    EXPECT_TRUE(a.dk.same_bits(b.dk)) << "dk";
    EXPECT_TRUE(a.dv.same_bits(b.dv)) << "dv";
    if (with_dq) {
      EXPECT_TRUE(a.dq.same_bits(b.dq)) << "dq";
    }
  }
  /// One capture serves kLayouts later layouts, each begun with the step before it.
  void serve(const CallShape& shape, Kind kind, bool deterministic) {
    const Runtime runtime = this->runtime(deterministic);
    const bool with_dq = deterministic || GetParam() == BackendKind::reference;
    const Case c = case_of(shape, kind, 1);
    Data data = make_data(c);
    Step step = first(runtime, c);
    ASSERT_EQ(step.decision().backend, GetParam());
    Caller caller(device_, step, c, data);
    Replay replay(*graphs_, caller, step);
    const Outputs& replayed = replay.fresh();
    expect_same(replayed, eager(runtime, c, data), with_dq);
    expect_oracle(c, data, replayed);
    for (int i = 0; i < kLayouts; ++i) {
      const Case later = case_of(shape, kind, static_cast<std::uint64_t>(i) + 2);
      SCOPED_TRACE(describe(later));
      data = make_data(later);
      step = next(runtime, later, step);
      if (HasFailure()) return;
      caller.load(data);
      step.refill(caller.stream());
      expect_same(replay.fresh(), eager(runtime, later, data), with_dq);
    }
  }
  std::optional<Graphs> graphs_;
};

TEST_P(GraphGpu, OneCaptureServesLaterLayouts) {
  serve(make_shape(8, 2, 64, DType::bf16), Kind::mixed, false);
  serve(make_shape(3, 1, 128, DType::f16), Kind::mixed, true);
  serve(make_shape(2, 2, 192, DType::bf16, 128), Kind::mixed, true);
}
TEST_P(GraphGpu, OneCaptureServesLaterLayoutsOfShortDocuments) {
  serve(make_shape(8, 2, 128, DType::bf16), Kind::brief, true);
  serve(make_shape(4, 4, 64, DType::f16), Kind::brief, false);
}

// The capture comes right after begin_step, whose copy of some MB may still be under way.
TEST_P(GraphGpu, CapturedBeforeTheUploadHasArrived) {
  const Runtime runtime = this->runtime(true);
  Case large;
  large.layout = from_lengths(std::vector<std::int64_t>(20000, 3), 0, "many");
  large.shape = make_shape(1, 1, 64, DType::bf16);
  const Case c = case_of(make_shape(8, 2, 64, DType::bf16), Kind::mixed, 7);
  const Data data = make_data(c);
  const Step warm = begin(runtime, c);
  Caller caller(device_, warm, c, data);
  const Outputs expected = caller.fresh(warm);
  for (int i = 0; i < 5; ++i) {
    const Step before = begin(runtime, large);  // its copy goes first
    const Step step = begin(runtime, c);
    Replay replay(*graphs_, caller, step);
    for (int n = 0; n < 2; ++n) expect_same(replay.fresh(), expected, true);
  }
}

// Nothing waits on the host between these: the stream alone keeps refills and replays apart.
TEST_P(GraphGpu, RefillsFollowReplays) {
  const Runtime runtime = this->runtime(true);
  const CallShape shape = make_shape(8, 2, 64, DType::bf16);
  const Case c = case_of(shape, Kind::mixed, 1);
  Case whole = c;  // without padding, whose inputs are NaN: all layouts get the same inputs
  whole.layout = from_lengths(std::vector<std::int64_t>{kTokens}, 0, "whole");
  const Data data = make_data(whole);
  const Step step = first(runtime, c);
  Caller caller(device_, step, c, data);
  Replay replay(*graphs_, caller, step);
  const TensorView& out = caller.out();
  const auto bytes = static_cast<std::size_t>(out.tokens * out.heads * out.dim) * size_of(out.dtype);
  std::vector<Step> steps;
  std::vector<device::Buffer> kept;
  std::vector<Case> cases;
  for (int i = 0; i < kLayouts; ++i) {
    cases.push_back(case_of(shape, Kind::mixed, static_cast<std::uint64_t>(i) + 30));
    steps.push_back(next(runtime, cases.back(), step));
    kept.push_back(device_->allocate(bytes));
  }
  void* const stream = caller.stream().handle;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].refill(caller.stream());
    replay.launch();
    device_->copy_async(kept[i].get(), out.data, bytes, stream);
  }
  steps.clear();  // while replays are under way
  caller.wait();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(describe(cases[i]));
    const Outputs expected = eager(runtime, cases[i], data);
    HostTensor got = expected.out;
    device_->download(got.data(), kept[i].get(), bytes);
    EXPECT_TRUE(got.same_bits(expected.out));
  }
  step.refill(caller.stream());  // and back
  expect_same(replay.fresh(), eager(runtime, c, data), true);
}

// Two classes replay on streams of their own while a third stream makes eager calls.
TEST_P(GraphGpu, ClassesAndEagerCallsSideBySide) {
  const Runtime runtime = this->runtime(true);
  const CallShape shape = make_shape(8, 2, 64, DType::bf16);
  const Case lone = case_of(shape, Kind::mixed, 99);
  const Data lone_data = make_data(lone);
  const Step lone_step = begin(runtime, lone);
  Caller lone_caller(device_, lone_step, lone, lone_data);
  const Outputs lone_expected = lone_caller.fresh(lone_step);
  struct Lane {
    Case c;
    Data data;
    Step step;
    Caller caller;
    Replay replay;
    Lane(std::shared_ptr<device::Device> device, const Graphs& graphs, const Step& of, const Case& its)
        : c(its),
          data(make_data(c)),
          step(of),
          caller(std::move(device), step, c, data),
          replay(graphs, caller, step) {}
  };
  const Case of_a = case_of(shape, Kind::mixed, 50), of_b = case_of(shape, Kind::brief, 51);
  Lane a(device_, *graphs_, first(runtime, of_a), of_a), b(device_, *graphs_, first(runtime, of_b), of_b);
  for (int i = 0; i < kLayouts; ++i) {
    const auto seed = static_cast<std::uint64_t>(100 + i);
    const Case to_a = case_of(shape, Kind::mixed, seed), to_b = case_of(shape, Kind::brief, seed);
    const Data data_a = make_data(to_a), data_b = make_data(to_b);
    const Outputs expected_a = eager(runtime, to_a, data_a), expected_b = eager(runtime, to_b, data_b);
    a.step = next(runtime, to_a, a.step);
    b.step = next(runtime, to_b, b.step);
    if (HasFailure()) return;
    for (auto& [lane, data] : {std::pair<Lane*, const Data*>{&a, &data_a}, {&b, &data_b}}) {
      lane->caller.load(*data);
      lane->caller.poison();
      lane->step.refill(lane->caller.stream());
    }
    lone_caller.poison();
    for (int n = 0; n < 4; ++n) {
      a.replay.launch();
      b.replay.launch();
      lone_caller.call(lone_step, true);
    }
    expect_same(a.caller.fetch(), expected_a, true);
    expect_same(b.caller.fetch(), expected_b, true);
    expect_same(lone_caller.fetch(), lone_expected, true);
  }
}

// Another thread begins steps while this one captures in global mode.
TEST_P(GraphGpu, StepsBeginWhileAnotherThreadCaptures) {
  const Runtime runtime = this->runtime(true);
  const Case c = case_of(make_shape(8, 2, 64, DType::bf16), Kind::mixed, 3);
  const Data data = make_data(c);
  const Step step = first(runtime, c);
  Caller caller(device_, step, c, data);
  void* const runnable = graphs_->capture(caller.stream().handle, [&] {
    std::thread other([&] {
      std::vector<Step> steps;
      for (int i = 0; i < 40; ++i)
        steps.push_back(next(runtime, case_of(c.shape, Kind::mixed, static_cast<std::uint64_t>(i)), step));
    });
    caller.call(step, true);
    other.join();
  });
  caller.poison();
  graphs_->launch(runnable, caller.stream().handle);
  expect_same(caller.fetch(), eager(runtime, c, data), true);
  graphs_->destroy(runnable);
}

INSTANTIATE_TEST_SUITE_P(Cuda, GraphGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
