// Planning time on one core. The goal is the global tables of 1,000,000 documents over 1024 ranks within 50 ms.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "plan/plan.h"
#include "plan/tile_schedule.h"

namespace bdcp::plan {
namespace {

/// Documents of 1 to 2000 tokens, the same on every machine.
std::vector<std::int64_t> lengths_of(std::int64_t documents) {
  std::mt19937_64 engine(1);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(documents));
  for (std::int64_t& length : lengths) length = 1 + static_cast<std::int64_t>(engine() % 2000);
  return lengths;
}

void layout(benchmark::State& state) {
  const auto lengths = lengths_of(state.range(0));
  const int world = static_cast<int>(state.range(1));
  for (auto _ : state) benchmark::DoNotOptimize(DocLayout::from_lengths(lengths, {.world_size = world}));
}

void global_plan(benchmark::State& state) {
  const DocLayout made =
      DocLayout::from_lengths(lengths_of(state.range(0)), {.world_size = static_cast<int>(state.range(1))});
  for (auto _ : state) benchmark::DoNotOptimize(make_global_plan(made));
}

void layout_and_global_plan(benchmark::State& state) {
  const auto lengths = lengths_of(state.range(0));
  const int world = static_cast<int>(state.range(1));
  for (auto _ : state) {
    benchmark::DoNotOptimize(make_global_plan(DocLayout::from_lengths(lengths, {.world_size = world})));
  }
}

/// The worst case of edges: one document over all ranks.
void one_document(benchmark::State& state) {
  const std::vector<std::int64_t> lengths = {state.range(0)};
  const DocLayout made = DocLayout::from_lengths(lengths, {.world_size = static_cast<int>(state.range(1))});
  for (auto _ : state) benchmark::DoNotOptimize(make_global_plan(made));
}

void rank_plan_and_tiles(benchmark::State& state) {
  const int world = static_cast<int>(state.range(1));
  const DocLayout made = DocLayout::from_lengths(lengths_of(state.range(0)), {.world_size = world});
  const GlobalPlan global = make_global_plan(made);
  for (auto _ : state) benchmark::DoNotOptimize(make_tile_schedule(make_rank_plan(made, global, world / 2)));
}

BENCHMARK(global_plan)->Args({1000000, 1024})->Args({1000, 8})->Unit(benchmark::kMillisecond);
BENCHMARK(layout)->Args({1000000, 1024})->Args({1000, 8})->Unit(benchmark::kMillisecond);
BENCHMARK(layout_and_global_plan)->Args({1000000, 1024})->Unit(benchmark::kMillisecond);
BENCHMARK(one_document)->Args({1000000000, 1024})->Unit(benchmark::kMillisecond);
BENCHMARK(rank_plan_and_tiles)->Args({1000000, 1024})->Args({1000, 8})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace bdcp::plan
