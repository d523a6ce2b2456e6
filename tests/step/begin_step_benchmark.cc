// Host time of a warm begin_step. The goals on a GPU: 50 us for 64 documents, 150 us for a production pack, and
// with two ranks 100 us beyond the later rank's arrival. Runs on device 0 where CUDA works, else on the host;
// with BDCP_LIBCUDA set to the tests' fake driver it shows what the driver does not cause.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "bdcp/runtime.h"

namespace bdcp {
namespace {

constexpr std::int64_t kTokens = 32768;

std::vector<std::int64_t> equal_lengths(std::int64_t documents) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(documents), kTokens / documents);
}

/// Log-normal lengths as production packs have them, the same on every machine.
std::vector<std::int64_t> mixed_lengths() {
  std::mt19937_64 engine(1);
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = kTokens; left > 0; left -= lengths.back()) {
    double gauss = -6;
    for (int i = 0; i < 12; ++i) gauss += static_cast<double>(engine() >> 11) * 0x1p-53;
    lengths.push_back(
        std::clamp<std::int64_t>(static_cast<std::int64_t>(std::exp(6.5 + 1.4 * gauss)), 1, left));
  }
  return lengths;
}

CallShape llama_shape() {
  CallShape shape;
  shape.heads_q = 32;
  shape.heads_kv = 8;
  shape.head_dim = 128;
  return shape;
}

Runtime quiet_runtime() {
  RuntimeOptions options;
  options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
  return Runtime::create(std::move(options));
}

void one_rank(benchmark::State& state, const std::vector<std::int64_t>& lengths) {
  const Runtime runtime = quiet_runtime();
  const DocLayout layout = DocLayout::from_lengths(lengths);
  const CallShape shape = llama_shape();
  benchmark::DoNotOptimize(runtime.begin_step(layout, shape));  // compiles
  for (auto _ : state) benchmark::DoNotOptimize(runtime.begin_step(layout, shape));
}

/// From the arrival of both ranks until the first of them has its step.
void two_ranks(benchmark::State& state, const std::vector<std::int64_t>& lengths) {
  const Runtime runtime = quiet_runtime();
  const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = 2});
  const CallShape shape = llama_shape();
  const std::vector<Communicator> ranks = Communicator::in_process(2);
  std::barrier arrival(2);
  bool running = true;  // written by this thread before an arrival, read by the peer after it
  std::jthread peer([&] {
    while (arrival.arrive_and_wait(), running)
      benchmark::DoNotOptimize(runtime.begin_step(layout, shape, ranks[1]));
  });
  for (auto _ : state) {
    arrival.arrive_and_wait();
    benchmark::DoNotOptimize(runtime.begin_step(layout, shape, ranks[0]));
  }
  running = false;
  arrival.arrive_and_wait();
}

BENCHMARK_CAPTURE(one_rank, 64_documents, equal_lengths(64))->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_rank, 1024_documents, equal_lengths(1024))->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(one_rank, production, mixed_lengths())->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(two_ranks, 64_documents, equal_lengths(64))->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK_CAPTURE(two_ranks, production, mixed_lengths())->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace bdcp
