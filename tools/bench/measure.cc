#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "bench/inputs.h"

namespace bdcp::bench {
namespace {

constexpr int kBeginSteps = 11;

Policy make_policy(const MeasureOptions& options, std::string_view backend) {
  Policy::Sources sources;
  sources.file = options.policy_file;
  if (!backend.empty()) sources.code.emplace_back("attention.backend", backend);
  if (!options.exchange.empty()) sources.code.emplace_back("exchange.path", options.exchange);
  if (options.deterministic) sources.code.emplace_back("attention.deterministic", "true");
  return Policy::load(sources);
}

Runtime make_runtime(Policy policy) {
  RuntimeOptions options;
  options.policy = std::move(policy);
  return Runtime::create(std::move(options));
}

}  // namespace

Bench::Bench(MeasureOptions options, const Team& team) : options_(std::move(options)), team_(team) {
  options_.shape.backward = options_.modes.gradients;
  runtime_ = make_runtime(make_policy(options_, options_.backend));
  const PolicyValues::Attention attention = runtime_->policy().resolve().attention;
  options_.deterministic = attention.deterministic;
  place_ = autotune::open_place(options_.device, attention.backend == BackendKind::host, &device_name_);
}

Outputs Bench::run(Session& session) {
  session.poison_outputs();
  session.forward();
  if (options_.modes.gradients) session.backward();
  return session.download();
}

Outputs Bench::trusted_run(const Workload& workload, const check::Problem& problem, const Inputs& f32) {
  const BackendKind backend = place_.memory.host() ? BackendKind::host : BackendKind::reference;
  if (!trusted_) trusted_ = make_runtime(make_policy(options_, to_string(backend)));
  CallShape shape = options_.shape;
  shape.dtype = DType::f32;
  Workload whole = workload;  // world 1, with the rows that sharding has padded
  whole.padding = problem.rows - workload.tokens();
  Session session(*trusted_, whole.layout(1), shape, place_, alone_);
  require(session.decision().backend == backend, ErrorCode::backend_unavailable, [&] {
    return fmt::format("large cases are checked against backend {} in f32, but {} ran", to_string(backend),
                       to_string(session.decision().backend));
  });
  session.upload(f32);
  return run(session);
}

std::vector<Measurement> Bench::measure(const Workload& workload, std::uint64_t seed) {
  const CallShape& shape = options_.shape;
  const DocLayout layout = workload.layout(options_.world);
  if (options_.poison) {
    require(*options_.poison >= 0 && *options_.poison < workload.documents(), ErrorCode::invalid_argument, [&] {
      return fmt::format("poison is {}; {} has documents 0 to {}", *options_.poison, workload.name,
                         workload.documents() - 1);
    });
  }
  Session session(*runtime_, layout, shape, place_, team_);
  const check::Problem problem =
      check::Problem::from(shape, workload.cu_q, workload.cu_k, session.rows(), session.key_rows());
  Inputs inputs = random_inputs(problem, shape.dtype, seed);
  // Padding may hold anything; what is checked has the worst in it.
  if (options_.check || options_.poison) poison_padding(inputs, problem, shape.dtype);
  session.upload(inputs);

  Measurement common;
  common.workload = &workload;
  common.shape = shape;
  common.world = options_.world;
  common.iters = options_.time ? options_.iters : 0;
  common.deterministic = options_.deterministic;
  common.seed = seed;
  common.device = device_name_;
  common.decision = session.decision();
  std::vector<Measurement> lines;
  for (const Direction mode : {Direction::forward, Direction::backward}) {
    if (mode == Direction::forward ? !options_.modes.forward : !options_.modes.gradients) continue;
    lines.push_back(common);
    lines.back().mode = mode;
  }

  const BackendKind backend = common.decision.backend;
  const bool dq_reproducible =
      options_.deterministic || backend == BackendKind::reference || backend == BackendKind::host;
  const auto tensors_of = [](const Measurement& line) {
    return Tensors{.forward = true, .gradients = line.mode == Direction::backward};
  };
  if (options_.check || options_.poison) {
    const Outputs first = run(session);
    if (options_.check) {
      const Outputs second = run(session);
      Checked checked;
      if (team_.leads())
        checked = check_numbers(problem, shape, inputs, first, options_.oracle,
                                [&](const Inputs& f32) { return trusted_run(workload, problem, f32); });
      for (Measurement& line : lines) {
        if (!team_.leads()) break;
        const Tensors which = tensors_of(line);
        line.check = CheckResult{.against = checked.against,
                                 .errors = checked.errors,
                                 .padding_zero = padding_is_zero(problem, shape.dtype, first, which),
                                 .repeat_identical = same_bits(first, second, which, dq_reproducible)};
        constexpr std::size_t kForwardTensors = 2;  // out and lse come first
        if (!which.gradients) line.check->errors.resize(kForwardTensors);
      }
    }
    if (options_.poison) {
      Inputs poisoned = inputs;
      poison(poisoned, problem, shape.dtype, *options_.poison);
      session.upload(poisoned);
      const Outputs outputs = run(session);
      for (Measurement& line : lines) {
        if (!team_.leads()) break;
        line.poison = compare_poisoned(problem, shape.dtype, *options_.poison, first, outputs, tensors_of(line),
                                       dq_reproducible);
      }
    }
  }
  if (options_.time) {
    if (options_.check || options_.poison) session.upload(random_inputs(problem, shape.dtype, seed));
    session.forward();  // what backward reads
    const double begin_step_us = session.time_begin_step(kBeginSteps);
    for (Measurement& line : lines) {
      line.timing = session.time(line.mode, options_.iters, options_.warmup);
      line.begin_step_us = begin_step_us;
    }
  }
  return lines;
}

}  // namespace bdcp::bench
