#include "step_draft.h"

#include <fmt/format.h>

#include "base/check.h"
#include "comm/launcher_env.h"
#include "policy/measured_exchange.h"

namespace bdcp {
namespace {

bool one_node(const StepRequest& request, const PolicyValues& values) {
  return request.comm.size() == 1 ||
         plan::count_nodes(request.comm.hosts(), values.exchange.ranks_per_node) == 1;
}

/// A launcher that starts a process per GPU may show each all of them, or its own alone.
int own_device(const Env& env, int count) {
  if (count == 0) return StepOptions::device_host;
  return count == 1 ? 0 : comm::local_rank(env.launcher) % count;
}

void choose_device(const StepRequest& request, const PolicyValues& values, StepDraft& draft) {
  int wanted = request.options.device;
  require(wanted >= StepOptions::device_auto, ErrorCode::invalid_argument, [&] {
    return fmt::format("options.device is {}; allowed: a CUDA ordinal, device_host, device_auto", wanted);
  });
  if (wanted == StepOptions::device_auto && values.attention.backend == BackendKind::host)
    wanted = StepOptions::device_host;
  if (wanted != StepOptions::device_host) {
    const auto driver = request.runtime.driver();
    const int count = driver ? driver->device_count() : 0;
    if (wanted == StepOptions::device_auto) wanted = own_device(request.runtime.env, count);
    if (wanted >= 0) {
      require(driver != nullptr, ErrorCode::library_missing, [&] {
        return fmt::format("options.device is {}, but {}", wanted, request.runtime.driver_error());
      });
      require(wanted < count, ErrorCode::invalid_argument, [&] {
        return fmt::format("options.device is {}; this process sees {} CUDA device(s)", wanted, count);
      });
      draft.step->device_handle = driver->device(wanted);
    }
  }
  draft.step->device = wanted;
  if (request.comm.size() == 1) return;
  const std::string why = request.comm.group()->why_not(draft.step->device_handle.get());
  require(why.empty(), ErrorCode::unsupported, [&] {
    return fmt::format(
        "communicator '{}' cannot serve device {}: {}; set options.device to device_host or "
        "attention.backend to \"host\" to run without it",
        request.comm.name(), wanted, why);
  });
  if (draft.step->device_handle)
    draft.step->meter = request.runtime.device_memory(draft.step->device_handle).meter;
  draft.report.transport = request.comm.group()->transport(draft.step->device_handle.get());
}

/// The measured row that fits, and what it says about this plan. A file that has none would leave the choice to
/// chance.
void weigh_measured(const StepRequest& request, const GroupPolicy& policy, StepDraft& draft) {
  const PolicyValues& values = *policy.values;
  if (!policy.measured || request.comm.size() == 1 || values.exchange.path != ExchangePath::automatic) return;
  const auto& device = draft.step->device_handle;
  const policy::MeasuredSetting setting{
      request.comm.size(), plan::count_nodes(request.comm.hosts(), values.exchange.ranks_per_node),
      policy::transport_kind(draft.report.transport), device ? device->facts().name : "host"};
  const policy::MeasuredRow& row = policy.measured->at(setting);
  std::vector<std::int64_t> bytes;
  for (const CallShape& shape : request.shapes)
    bytes.push_back(static_cast<std::int64_t>(size_of(shape.dtype)) * shape.heads_kv *
                    (shape.head_dim + shape.dim_v()));
  draft.costs =
      plan::path_costs(draft.global, bytes,
                       {plan::CostCurve(row.allgather), plan::CostCurve(row.halo), plan::CostCurve(row.a2a)});
  draft.report.measured = policy::to_text(setting);
}

plan::Verdict judge(const StepRequest& request, const attention::Backend& backend, const StepDraft& draft) {
  const auto& device = draft.step->device_handle;
  const attention::Target target{device ? &device->facts() : nullptr};
  for (const CallShape& shape : request.shapes)
    if (plan::Verdict verdict = backend.can(shape, target, draft.options); !verdict.ok) return verdict;
  return {};
}

/// Fills the verdicts; the first backend that can run every shape is prepared, kernels included, so that a
/// compile failure counts as "cannot". Later ones are judged by capability alone.
void weigh_backends(const StepRequest& request, const PolicyValues& values, StepDraft& draft) {
  auto& verdicts = draft.report.facts.backends;
  for (const std::size_t i : plan::backend_order(values.attention.backend)) {
    const BackendKind kind = plan::kBackendOrder[i];
    const attention::Backend* backend = find_backend(request.runtime, kind);
    if (!backend) {
      verdicts[i] = {false, "not_built", fmt::format("backend {} is not part of this build", to_string(kind))};
      continue;
    }
    verdicts[i] = judge(request, *backend, draft);
    if (!verdicts[i].ok || draft.candidate != BackendKind::automatic) continue;
    try {
      draft.prepared = prepare_shapes(request, *backend, draft);
      draft.candidate = kind;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::compile_failed && error.code() != ErrorCode::library_missing) throw;
      if (request.runtime.on_miss == PolicyValues::OnMiss::error) throw;
      verdicts[i] = {false, std::string(to_string(error.code())), error.what()};
      draft.prepared.clear();
    }
  }
}

/// For downgrades that only a call's tensors show.
std::function<void(const Downgrade&)> report_to(const Runtime::Impl& runtime,
                                                std::shared_ptr<const PolicyValues> values) {
  return [services = runtime.services, values = std::move(values)](const Downgrade& downgrade) {
    services.downgrades->record({&downgrade, 1}, *values, *services.log, services.events);
  };
}

}  // namespace

const attention::Backend* find_backend(const Runtime::Impl& runtime, BackendKind kind) {
  for (const auto& backend : runtime.backends)
    if (backend->kind() == kind) return backend.get();
  return nullptr;
}

PreparedShapes prepare_shapes(const StepRequest& request, const attention::Backend& backend, StepDraft& draft) {
  const auto& device = draft.step->device_handle;
  std::optional<device::RelaxedCaptures> relaxed;  // other threads, or this one, may be in a capture
  if (device) relaxed.emplace(device->driver());
  const Runtime::Impl::DeviceMemory memory =
      device ? request.runtime.device_memory(device) : Runtime::Impl::DeviceMemory{};
  const attention::PrepareContext context{.device = device,
                                          .cache = request.runtime.services.cache.get(),
                                          .on_downgrade = report_to(request.runtime, draft.step->policy),
                                          .tables = device ? memory.tables->make_tables() : nullptr,
                                          .counters = memory.counters,
                                          .room = {draft.graph.documents},
                                          .arrival_rate = one_node(request, *draft.step->policy)
                                                              ? attention::kNodeArrivalRate
                                                              : attention::kNicArrivalRate};
  PreparedShapes prepared;
  for (const CallShape& shape : request.shapes) {
    prepared.push_back(backend.prepare(shape, draft.step->plan, draft.options, context));
    if (device &&
        request.comm.size() > 1)  // a kernel the exchange lacks must surface here too, not after the consensus
      for (const jit::KernelSpec& spec :
           comm::required_kernels(shape.dtype, draft.options.payload_f32, device->facts().arch))
        request.runtime.services.cache->load(spec, device);
  }
  if (context.tables) place_tables(draft.graph, backend.kind(), prepared, *context.tables);
  draft.step->tables = context.tables;
  return prepared;
}

void make_draft(const StepRequest& request, const GroupPolicy& policy, StepDraft& draft) {
  const PolicyValues& values = *policy.values;
  require(request.layout.world_size() == request.comm.size(), ErrorCode::invalid_argument, [&] {
    return fmt::format("layout.world_size() is {}, the communicator has {} ranks", request.layout.world_size(),
                       request.comm.size());
  });
  require(!request.shapes.empty(), ErrorCode::invalid_argument,
          "shapes is empty; a step needs at least one call shape");
  for (std::size_t i = 0; i < request.shapes.size(); ++i) validate_shape(request.shapes[i], i);

  draft.step = std::make_shared<Step::Impl>(request.layout, request.comm, policy.values);
  draft.step->services = request.runtime.services;
  draft.step->number = request.ticket.number;
  draft.step->exposed = std::make_shared<comm::ExposedTime>(request.runtime.services.metrics->exposed);
  draft.global = plan::make_global_plan(request.layout);
  draft.step->plan = plan::make_rank_plan(request.layout, draft.global, request.comm.rank());
  const std::string bad = plan::plan_guard(draft.step->plan);
  require(bad.empty(), ErrorCode::internal, [&] { return "the plan is invalid: " + bad; });
  choose_device(request, values, draft);
  draft.graph = graph_class(request.options, *draft.step, request.shapes);
  draft.options = attention::options_of(values);
  weigh_measured(request, policy, draft);
  weigh_backends(request, values, draft);
}

}  // namespace bdcp
