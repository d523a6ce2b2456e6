// begin_step: plan, verdicts, one consensus round, decision, kernels.
#include <fmt/format.h>

#include <algorithm>

#include "agreement.h"
#include "attention/options.h"
#include "base/check.h"
#include "comm/call_ledger.h"
#include "comm/consensus.h"
#include "graph_class.h"
#include "runtime_impl.h"

namespace bdcp {
namespace {

constexpr std::size_t kAlign = 256;
std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Everything one rank works out alone, before it talks to the others.
struct Draft {
  std::shared_ptr<Step::Impl> step;
  plan::GlobalPlan global;
  attention::Options options;
  GraphClass graph;
  std::vector<std::shared_ptr<const attention::PreparedAttention>> prepared;  ///< by shape, for `candidate`
  BackendKind candidate = BackendKind::automatic;
  RankReport report;
};

/// Policy values whose feature this build does not have yet: refused by name, alike on every rank.
void refuse_missing_features(const PolicyValues& policy, comm::Group* group, device::Device* device) {
  require(policy.exchange.transport != PolicyValues::Transport::copy_engine, ErrorCode::unsupported,
          "exchange.transport: \"copy_engine\" is not part of this build; allowed: \"auto\", \"nccl\"");
  const std::string transport = group ? group->transport(device) : "";
  require(policy.exchange.transport != PolicyValues::Transport::nccl || !group || transport.starts_with("nccl"),
          ErrorCode::unsupported, [&] {
            return fmt::format(
                "exchange.transport: \"nccl\" moves device memory between processes, and communicator "
                "'{}' moves by {} here; allowed: \"auto\"",
                group->name(), transport);
          });
  require(policy.attention.sm_margin == 0, ErrorCode::unsupported,
          "attention.sm_margin: no kernel of this build has a persistent grid to take SMs from; allowed: 0");
  const PolicyValues defaults;
  require(policy.exchange.landing_slots == defaults.exchange.landing_slots &&
              policy.exchange.landing_mib == defaults.exchange.landing_mib,
          ErrorCode::unsupported,
          "exchange.landing_slots, exchange.landing_mib: landing buffers belong to a transport that is not "
          "part of this "
          "build; allowed: the defaults");
  // Agreed on by now: every member goes over to it in the same step.
  const bool beats = group && group->set_heartbeat(policy.agreement.heartbeat_s);
  require(beats || policy.agreement.heartbeat_s == defaults.agreement.heartbeat_s, ErrorCode::unsupported,
          "agreement.heartbeat_s: ranks of one process need no heartbeats; allowed: the default");
  require(!policy.exchange.measured, ErrorCode::unsupported,
          "exchange.measured: measured cost files are not part of this build; leave the field null");
}

class StepBuilder {
 public:
  StepBuilder(Runtime::Impl& runtime, const DocLayout& layout, std::span<const CallShape> shapes,
              const Communicator& comm, const StepOptions& options, const Runtime::Impl::Ticket& ticket)
      : runtime_(runtime), layout_(layout), shapes_(shapes), comm_(comm), options_(options), ticket_(ticket) {}

  /// nullopt: the ranks agreed to switch to a reloaded policy, and the step starts over with it.
  std::optional<Step> build(const GroupPolicy& policy) {
    const PolicyValues& values = *policy.values;
    Draft draft;
    try {
      prepare(policy, draft);
    } catch (const Error& error) {
      // World > 1: the others learn it in the consensus; this rank must not leave them waiting.
      if (comm_.size() == 1) throw;
      draft.report.error = {error.code(), error.message()};
    } catch (const std::exception& error) {
      if (comm_.size() == 1) throw;
      draft.report.error = {ErrorCode::internal, error.what()};
    }
    draft.report.facts.host = comm_.hosts()[static_cast<std::size_t>(comm_.rank())];
    draft.report.pending_policy = policy.pending;

    std::vector<RankReport> reports = agree(policy, draft);
    {
      std::lock_guard lock(runtime_.mutex);
      ticket_.state->active = policy.active;
    }
    if (!policy.pending.empty() && std::all_of(reports.begin(), reports.end(), [&](const RankReport& r) {
          return r.pending_policy == policy.pending;
        }))
      return std::nullopt;
    raise_reported_errors(reports);
    raise_transport_difference(reports);
    refuse_missing_features(values, comm_.group().get(), draft.step->device_handle.get());
    decide(values, reports, draft);
    finish(values, draft);
    return Step(draft.step);
  }

 private:
  void prepare(const GroupPolicy& policy, Draft& draft) {
    const PolicyValues& values = *policy.values;
    require(layout_.world_size() == comm_.size(), ErrorCode::invalid_argument, [&] {
      return fmt::format("layout.world_size() is {}, the communicator has {} ranks", layout_.world_size(),
                         comm_.size());
    });
    require(!shapes_.empty(), ErrorCode::invalid_argument,
            "shapes is empty; a step needs at least one call shape");
    for (std::size_t i = 0; i < shapes_.size(); ++i) validate_shape(shapes_[i], i);

    draft.step = std::make_shared<Step::Impl>(layout_, comm_, policy.values);
    draft.step->services = runtime_.services;
    draft.step->number = ticket_.number;
    draft.global = plan::make_global_plan(layout_);
    draft.step->plan = plan::make_rank_plan(layout_, draft.global, comm_.rank());
    const std::string bad = plan::plan_guard(draft.step->plan);
    require(bad.empty(), ErrorCode::internal, [&] { return "the plan is invalid: " + bad; });
    choose_device(values, draft);
    draft.graph = graph_class(options_, *draft.step, shapes_);
    draft.options = attention::options_of(values);
    weigh_backends(values, draft);
  }

  void choose_device(const PolicyValues& values, Draft& draft) {
    int wanted = options_.device;
    require(wanted >= StepOptions::device_auto, ErrorCode::invalid_argument, [&] {
      return fmt::format("options.device is {}; allowed: a CUDA ordinal, device_host, device_auto", wanted);
    });
    if (wanted == StepOptions::device_auto && values.attention.backend == BackendKind::host)
      wanted = StepOptions::device_host;
    if (wanted != StepOptions::device_host) {
      const auto driver = runtime_.driver();
      const int count = driver ? driver->device_count() : 0;
      if (wanted == StepOptions::device_auto) wanted = count > 0 ? 0 : StepOptions::device_host;
      if (wanted >= 0) {
        require(driver != nullptr, ErrorCode::library_missing,
                [&] { return fmt::format("options.device is {}, but {}", wanted, runtime_.driver_error()); });
        require(wanted < count, ErrorCode::invalid_argument, [&] {
          return fmt::format("options.device is {}; this process sees {} CUDA device(s)", wanted, count);
        });
        draft.step->device_handle = driver->device(wanted);
      }
    }
    draft.step->device = wanted;
    if (comm_.size() == 1) return;
    const std::string why = comm_.group()->why_not(draft.step->device_handle.get());
    require(why.empty(), ErrorCode::unsupported, [&] {
      return fmt::format(
          "communicator '{}' cannot serve device {}: {}; set options.device to device_host or "
          "attention.backend to \"host\" to run without it",
          comm_.name(), wanted, why);
    });
    draft.report.transport = comm_.group()->transport(draft.step->device_handle.get());
  }

  /// Fills the verdicts; the first backend that can run every shape is prepared, kernels included, so that a
  /// compile failure counts as "cannot". Later ones are judged by capability alone.
  void weigh_backends(const PolicyValues& values, Draft& draft) {
    auto& verdicts = draft.report.facts.backends;
    for (const std::size_t i : plan::backend_order(values.attention.backend)) {
      const BackendKind kind = plan::kBackendOrder[i];
      const attention::Backend* backend = find(kind);
      if (!backend) {
        verdicts[i] = {false, "not_built",
                       fmt::format("backend {} is not part of this build", to_string(kind))};
        continue;
      }
      verdicts[i] = judge(*backend, draft);
      if (!verdicts[i].ok || draft.candidate != BackendKind::automatic) continue;
      try {
        draft.prepared = prepare_shapes(*backend, draft);
        draft.candidate = kind;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::compile_failed && error.code() != ErrorCode::library_missing) throw;
        if (runtime_.on_miss == PolicyValues::OnMiss::error) throw;
        verdicts[i] = {false, std::string(to_string(error.code())), error.what()};
        draft.prepared.clear();
      }
    }
  }

  plan::Verdict judge(const attention::Backend& backend, const Draft& draft) const {
    const auto& device = draft.step->device_handle;
    const attention::Target target{device ? &device->facts() : nullptr};
    for (const CallShape& shape : shapes_)
      if (plan::Verdict verdict = backend.can(shape, target, draft.options); !verdict.ok) return verdict;
    return {};
  }

  std::vector<std::shared_ptr<const attention::PreparedAttention>> prepare_shapes(
      const attention::Backend& backend, Draft& draft) const {
    const auto& device = draft.step->device_handle;
    std::optional<device::RelaxedCaptures> relaxed;  // other threads, or this one, may be in a capture
    if (device) relaxed.emplace(device->driver());
    const Runtime::Impl::DeviceMemory memory =
        device ? runtime_.device_memory(device) : Runtime::Impl::DeviceMemory{};
    const attention::PrepareContext context{.device = device,
                                            .cache = runtime_.services.cache.get(),
                                            .on_downgrade = report_to(draft.step->policy),
                                            .tables = device ? memory.tables->make_tables() : nullptr,
                                            .counters = memory.counters,
                                            .room = {draft.graph.documents}};
    std::vector<std::shared_ptr<const attention::PreparedAttention>> prepared;
    for (const CallShape& shape : shapes_) {
      prepared.push_back(backend.prepare(shape, draft.step->plan, draft.options, context));
      if (device &&
          comm_.size() > 1)  // a kernel the exchange lacks must surface here too, not after the consensus
        for (const jit::KernelSpec& spec :
             comm::required_kernels(shape.dtype, draft.options.payload_f32, device->facts().arch))
          runtime_.services.cache->load(spec, device);
    }
    if (context.tables) place_tables(draft.graph, backend.kind(), prepared, *context.tables);
    draft.step->tables = context.tables;
    return prepared;
  }

  /// For downgrades that only a call's tensors show.
  std::function<void(const Downgrade&)> report_to(std::shared_ptr<const PolicyValues> values) const {
    return [services = runtime_.services, values = std::move(values)](const Downgrade& downgrade) {
      services.downgrades->record({&downgrade, 1}, *values, *services.log, services.events);
    };
  }

  std::vector<RankReport> agree(const GroupPolicy& policy, const Draft& draft) {
    std::vector<RankReport> reports;
    if (comm_.size() == 1) {
      reports.push_back(draft.report);
      return reports;
    }
    comm::Group& members = *comm_.group();
    comm::ConsensusInput input;
    input.step = ticket_.number;
    input.must_match = must_match_fields(layout_, shapes_, policy.fields, runtime_.templates_hash);
    input.calls = ticket_.calls;
    input.facts = encode(draft.report);
    const std::vector<std::string> frames =
        comm::agree(members, input, comm::deadline_in(policy.values->agreement.timeout_s));
    for (std::size_t r = 0; r < frames.size(); ++r) reports.push_back(decode(frames[r], static_cast<int>(r)));
    return reports;
  }

  void decide(const PolicyValues& values, const std::vector<RankReport>& reports, Draft& draft) {
    plan::PathFacts facts;
    facts.requested = values.exchange.path;
    facts.backend = values.attention.backend;
    facts.needed_only_across_nodes = values.exchange.cross_node == PolicyValues::CrossNode::needed_only;
    facts.ranks_per_node = values.exchange.ranks_per_node;
    for (const RankReport& report : reports) facts.ranks.push_back(report.facts);
    plan::add_plan_facts(draft.global, facts);
    for (const CallShape& shape : shapes_) facts.dropout_p = std::max(facts.dropout_p, shape.dropout_p);
    draft.step->decision = plan::select(facts);
    runtime_.services.downgrades->record(draft.step->decision.downgrades, values, *runtime_.services.log,
                                         runtime_.services.events);
  }

  void finish(const PolicyValues& values, Draft& draft) {
    Step::Impl& step = *draft.step;
    try {
      if (draft.candidate != step.decision.backend) {
        // Another rank lacks what this one had prepared.
        draft.prepared = prepare_shapes(*find(step.decision.backend), draft);
      }
      if (comm_.size() > 1) {
        const double most = std::max(values.agreement.timeout_s, values.failure.exchange_timeout_s);
        comm_.group()->prepare(step.device_handle, comm::deadline_in(most));
      }
      for (std::size_t i = 0; i < shapes_.size(); ++i) step.shapes.push_back(assemble(values, draft, i));
      step.graph_documents = draft.graph.documents;
      step.recapture = draft.graph.recapture;
      if (step.recapture) ++runtime_.services.metrics->recaptures;
    } catch (const Error& error) {
      if (comm_.size() > 1) comm_.group()->fail(error);
      throw;
    } catch (const std::exception& error) {
      if (comm_.size() > 1) comm_.group()->fail(Error(ErrorCode::internal, error.what()));
      throw;
    }
  }

  PreparedShape assemble(const PolicyValues& values, const Draft& draft, std::size_t index) const {
    const Step::Impl& step = *draft.step;
    PreparedShape ps;
    ps.shape = shapes_[index];
    ps.attention = draft.prepared[index];
    if (comm_.size() > 1) {
      ps.exchange = std::make_unique<comm::KvExchange>(
          comm_.group(), draft.global, step.plan, ps.shape,
          comm::KvExchangeOptions{.path = step.decision.path,
                                  .payload_f32 = draft.options.payload_f32,
                                  .start_timeout_s = values.agreement.timeout_s,
                                  .timeout_s = values.failure.exchange_timeout_s,
                                  .device = step.device_handle,
                                  .cache = runtime_.services.cache.get()});
      ps.landing = aligned(ps.exchange->landing_bytes());
      ps.gradients = aligned(ps.exchange->gradient_bytes());
    }
    const bool keep = step.keep_kv();
    ps.sizes.kept_kv = keep ? ps.landing : 0;
    ps.sizes.forward = (keep ? 0 : ps.landing) + aligned(ps.attention->forward_workspace());
    ps.sizes.backward =
        ps.shape.backward ? (keep ? 0 : ps.landing) + ps.gradients + aligned(ps.attention->backward_workspace())
                          : 0;
    return ps;
  }

  const attention::Backend* find(BackendKind kind) const {
    for (const auto& backend : runtime_.backends)
      if (backend->kind() == kind) return backend.get();
    return nullptr;
  }

  Runtime::Impl& runtime_;
  const DocLayout& layout_;
  std::span<const CallShape> shapes_;
  const Communicator& comm_;
  const StepOptions& options_;
  const Runtime::Impl::Ticket& ticket_;
};

}  // namespace

Step Runtime::Impl::begin_step(const DocLayout& layout, std::span<const CallShape> shapes,
                               const Communicator& comm, const StepOptions& step_options,
                               const Ticket& ticket) {
  // Steps agree in the order in which they were issued, whatever threads they run on; whoever leaves passes the
  // turn on.
  struct Turn {
    const Ticket& ticket;
    ~Turn() { ticket.state->pass(ticket.number); }
  } turn{ticket};
  try {
    if (comm.size() > 1) ticket.state->wait_for(ticket.number);
    std::shared_ptr<const Policy> active, newest;
    {
      std::lock_guard lock(mutex);
      newest = latest;
      active = comm.size() > 1 && ticket.state->active ? ticket.state->active : newest;
    }
    StepBuilder builder(*this, layout, shapes, comm, step_options, ticket);
    std::optional<Step> step = builder.build(*group_policy(ticket, comm, active, newest));
    if (!step) step = builder.build(*group_policy(ticket, comm, newest, newest));
    ++services.metrics->steps;
    return *step;
  } catch (const std::exception& error) {
    ++services.metrics->failed_steps;
    emit("failure", error.what());
    throw;
  }
}

}  // namespace bdcp
