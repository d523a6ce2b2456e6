// The main job, end to end: a production pack planned for 4 ranks, its kernels compiled into a cache, forward
// and backward over the three exchange paths, compared with a dense run on one rank. See README.md.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "bdcp/attention.h"
#include "bench/inputs.h"
#include "bench/session.h"
#include "check/numbers.h"
#include "check/oracle.h"
#include "common/cli.h"
#include "common/workloads.h"
#include "device/device.h"

namespace bdcp::tools {
namespace {

struct Options {
  std::string pack = "prod8192_0", cache;
  int world = 4;
};

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// A Runtime that is asked for one exchange path; logs are left to the report.
Runtime make_runtime(const Options& options, ExchangePath path) {
  Policy::Sources sources;
  sources.code = {{"exchange.path", std::string(to_string(path))}, {"log.level", "error"}};
  if (!options.cache.empty()) sources.code.emplace_back("kernels.cache_dir", options.cache);
  RuntimeOptions runtime;
  runtime.policy = Policy::load(sources);
  return Runtime::create(std::move(runtime));
}

/// The best place for the job: the first GPU, or the host.
bench::Place find_place(std::string* name) {
  std::string why;
  bench::Place place;
  const auto driver = device::Driver::open(Env::from_process(), &why);
  if (driver && driver->device_count() > 0) {
    const auto device = driver->device(0);
    *name = device->facts().name;
    place.memory = bench::Memory(device);
    place.device = 0;
  } else {
    *name = fmt::format("the host ({})", why.empty() ? "no CUDA device" : why);
  }
  return place;
}

/// Compiles what `shape` may need on either architecture; false where this machine cannot compile.
bool warm_kernels(const Runtime& runtime, const CallShape& shape) {
  for (const std::string arch : {"sm_90a", "sm_80"}) {
    const Stopwatch watch;
    try {
      const KernelLimits limits{.arch = arch, .distributed = true};
      const std::vector<KernelInfo> kernels = runtime.warm(std::span(&shape, 1), limits);
      const auto hits =
          std::count_if(kernels.begin(), kernels.end(), [](const KernelInfo& k) { return k.hit; });
      double compile_ms = 0;
      for (const KernelInfo& kernel : kernels) compile_ms += kernel.hit ? 0 : kernel.compile_ms;
      fmt::print("  {:<7} {} kernels: {} cache hits, {} compiled ({:.1f} s of compiling in {:.1f} s)\n", arch,
                 kernels.size(), hits, kernels.size() - hits, compile_ms / 1e3, watch.seconds());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::library_missing) throw;
      fmt::print("  {:<7} not compiled: {}\n", arch, error.message());
      return false;
    }
  }
  return true;
}

bench::Outputs run(bench::Session& session, const bench::Inputs& inputs, double* fwd_ms, double* bwd_ms) {
  session.upload(inputs);
  session.poison_outputs();  // a row that is not written shows
  const Stopwatch forward;
  session.forward();
  *fwd_ms = forward.seconds() * 1e3;
  const Stopwatch backward;
  session.backward();
  *bwd_ms = backward.seconds() * 1e3;
  return session.download();
}

/// The tensors of a run as numbers, in the order out, lse, dq, dk, dv.
std::vector<std::vector<double>> numbers(const bench::Outputs& outputs, DType dtype) {
  const auto elements = [&](const std::vector<std::byte>& bytes) {
    std::vector<double> values(bytes.size() / size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = check::load(bytes.data(), dtype, static_cast<std::int64_t>(i));
    return values;
  };
  return {elements(outputs.out),
          {outputs.lse.begin(), outputs.lse.end()},
          elements(outputs.dq),
          elements(outputs.dk),
          elements(outputs.dv)};
}

/// Prints each tensor's error; true if all pass.
bool compare(const std::vector<std::vector<double>>& actual, const std::vector<std::vector<double>>& expected,
             DType dtype) {
  static constexpr const char* kNames[] = {"out", "lse", "dq", "dk", "dv"};
  std::string failures;
  fmt::print("           ");
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto quantity = i == 0   ? check::Quantity::out
                          : i == 1 ? check::Quantity::lse
                                   : check::Quantity::gradient;
    const check::Errors errors = check::compare(actual[i], expected[i]);
    const double shown = quantity == check::Quantity::lse ? errors.max : errors.rel_l2;
    fmt::print("{}{} {:.1e} (limit {:.1e})", i ? ", " : "", kNames[i], shown, check::limit(quantity, dtype));
    if (const std::string why = check::why_not(quantity, dtype, errors); !why.empty())
      failures += fmt::format("           FAILED {}: {}\n", kNames[i], why);
  }
  fmt::print("\n{}", failures);
  return failures.empty();
}

/// One exchange path over all ranks against the dense result; true if it passes.
bool run_path(const Options& options, ExchangePath path, const DocLayout& layout, const CallShape& shape,
              const bench::Place& place, const bench::Inputs& inputs,
              const std::vector<std::vector<double>>& expected) {
  const Runtime runtime = make_runtime(options, path);
  const bench::Team team(layout.world_size());
  bench::Session session(runtime, layout, shape, place, team);
  const Decision& decision = session.decision();
  double fwd_ms = 0, bwd_ms = 0;
  const bench::Outputs outputs = run(session, inputs, &fwd_ms, &bwd_ms);
  fmt::print("  {:<9} ran as {} on {}; forward {:.0f} ms, backward {:.0f} ms\n", to_string(path),
             to_string(decision.path), to_string(decision.backend), fwd_ms, bwd_ms);
  if (decision.downgrades.empty()) fmt::print("           no downgrade\n");
  for (const Downgrade& step : decision.downgrades)
    fmt::print("           downgrade {} -> {} ({}{}): {}\n", step.from, step.to, step.code,
               step.rank >= 0 ? fmt::format(", rank {}", step.rank) : "", step.text);
  return compare(numbers(outputs, shape.dtype), expected, shape.dtype);
}

int main_job(const Options& options) {
  const std::vector<std::int64_t> lengths = find_pack(options.pack);
  const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = options.world});
  std::string where;
  const bench::Place place = find_place(&where);
  CallShape shape;
  shape.heads_q = place.memory.host() ? 4 : 32;  // Llama-3 8B heads on a GPU, a sixteenth of it on a CPU
  shape.heads_kv = place.memory.host() ? 1 : 8;
  shape.head_dim = place.memory.host() ? 64 : 128;
  fmt::print("bdcp quick start\n  pack    {}: {} documents, {} tokens on {} ranks of {}\n", options.pack,
             layout.documents(), layout.tokens(), layout.world_size(), layout.local_tokens());
  fmt::print("  shape   {}:{} heads, d{}, {}\n  runs on {}\n", shape.heads_q, shape.heads_kv, shape.head_dim,
             to_string(shape.dtype), where);

  const Runtime dense_runtime = make_runtime(options, ExchangePath::automatic);
  const auto cache = dense_runtime.policy().resolve().kernels.cache_dir;
  fmt::print("kernels (cache: {})\n", cache.value_or("the user's cache folder"));
  const bool compiled = warm_kernels(dense_runtime, shape);

  // The dense reference: one rank, the same backend, the same values in f32.
  const DocLayout dense_layout =
      DocLayout::from_lengths(lengths, {.padding_tokens = layout.padded_tokens() - layout.real_tokens()});
  CallShape dense_shape = shape;
  dense_shape.dtype = DType::f32;
  const bench::Inputs inputs =
      bench::random_inputs(check::Problem::from(shape, layout), shape.dtype, /*seed=*/1);
  std::vector<std::vector<double>> expected;
  {
    const bench::Team alone(1);
    bench::Session session(dense_runtime, dense_layout, dense_shape, place, alone);
    double fwd_ms = 0, bwd_ms = 0;
    expected = numbers(run(session, bench::to_f32(inputs, shape.dtype), &fwd_ms, &bwd_ms), DType::f32);
    fmt::print("dense reference\n  one rank, f32, {}; forward {:.0f} ms, backward {:.0f} ms\n",
               to_string(session.decision().backend), fwd_ms, bwd_ms);
  }

  fmt::print("exchange paths (errors against the dense reference)\n");
  bool passed = true;
  for (const ExchangePath path : {ExchangePath::allgather, ExchangePath::halo, ExchangePath::a2a})
    passed = run_path(options, path, layout, shape, place, inputs, expected) && passed;
  fmt::print("result    {}\n", !passed    ? "a comparison failed"
                               : compiled ? "ok"
                                          : "the host part is ok; kernels could not be compiled here");
  return !passed ? exit_check_failed : compiled ? exit_ok : exit_environment;
}

}  // namespace
}  // namespace bdcp::tools

int main(int argc, char** argv) {
  bdcp::tools::Options options;
  CLI::App app("Runs the main job of bdcp on a production pack and compares it with a dense run.");
  app.add_option("--pack", options.pack, "a pack of configs/workloads")->capture_default_str();
  app.add_option("--world", options.world, "ranks (threads of this process)")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--cache", options.cache, "kernel cache folder (default: the user's)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) ? bdcp::tools::exit_usage : bdcp::tools::exit_ok;
  }
  return bdcp::tools::run_tool("bdcp-quickstart", [&] { return bdcp::tools::main_job(options); });
}
