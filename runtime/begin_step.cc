// begin_step: what each rank drafts, one consensus round, decision, what calls need.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "comm/call_ledger.h"
#include "comm/consensus.h"
#include "step_draft.h"

namespace bdcp {
namespace {

constexpr std::size_t kAlign = 256;
std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

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
}

class StepBuilder {
 public:
  explicit StepBuilder(const StepRequest& request) : request_(request) {}

  /// nullopt: the ranks agreed to switch to a reloaded policy, and the step starts over with it.
  std::optional<Step> build(const GroupPolicy& policy) {
    const PolicyValues& values = *policy.values;
    StepDraft draft;
    try {
      make_draft(request_, policy, draft);
    } catch (const Error& error) {
      // World > 1: the others learn it in the consensus; this rank must not leave them waiting.
      if (request_.comm.size() == 1) throw;
      draft.report.error = {error.code(), error.message()};
    } catch (const std::exception& error) {
      if (request_.comm.size() == 1) throw;
      draft.report.error = {ErrorCode::internal, error.what()};
    }
    draft.report.facts.host = request_.comm.hosts()[static_cast<std::size_t>(request_.comm.rank())];
    draft.report.pending_policy = policy.pending;

    std::vector<RankReport> reports = agree(policy, draft);
    {
      std::lock_guard lock(request_.runtime.mutex);
      request_.ticket.state->active = policy.active;
    }
    if (!policy.pending.empty() && std::all_of(reports.begin(), reports.end(), [&](const RankReport& r) {
          return r.pending_policy == policy.pending;
        }))
      return std::nullopt;
    raise_reported_errors(reports);
    raise_setting_difference(reports);
    refuse_missing_features(values, request_.comm.group().get(), draft.step->device_handle.get());
    decide(values, reports, draft);
    finish(values, draft);
    return Step(draft.step);
  }

 private:
  std::vector<RankReport> agree(const GroupPolicy& policy, const StepDraft& draft) {
    std::vector<RankReport> reports;
    if (request_.comm.size() == 1) {
      reports.push_back(draft.report);
      return reports;
    }
    comm::Group& members = *request_.comm.group();
    comm::ConsensusInput input;
    input.step = request_.ticket.number;
    input.must_match =
        must_match_fields(request_.layout, request_.shapes, policy.fields, request_.runtime.templates_hash);
    input.calls = request_.ticket.calls;
    input.facts = encode(draft.report);
    const std::vector<std::string> frames =
        comm::agree(members, input, comm::deadline_in(policy.values->agreement.timeout_s));
    for (std::size_t r = 0; r < frames.size(); ++r) reports.push_back(decode(frames[r], static_cast<int>(r)));
    return reports;
  }

  void decide(const PolicyValues& values, const std::vector<RankReport>& reports, StepDraft& draft) {
    plan::PathFacts facts;
    facts.requested = values.exchange.path;
    facts.backend = values.attention.backend;
    facts.needed_only_across_nodes = values.exchange.cross_node == PolicyValues::CrossNode::needed_only;
    facts.ranks_per_node = values.exchange.ranks_per_node;
    for (const RankReport& report : reports) facts.ranks.push_back(report.facts);
    plan::add_plan_facts(draft.global, facts);
    facts.costs = draft.costs;
    for (const CallShape& shape : request_.shapes) facts.dropout_p = std::max(facts.dropout_p, shape.dropout_p);
    draft.step->decision = plan::select(facts);
    request_.runtime.services.downgrades->record(draft.step->decision.downgrades, values,
                                                 *request_.runtime.services.log,
                                                 request_.runtime.services.events);
  }

  void finish(const PolicyValues& values, StepDraft& draft) {
    Step::Impl& step = *draft.step;
    try {
      if (draft.candidate != step.decision.backend) {
        // Another rank lacks what this one had prepared.
        draft.prepared =
            prepare_shapes(request_, *find_backend(request_.runtime, step.decision.backend), draft);
      }
      if (request_.comm.size() > 1) {
        const double most = std::max(values.agreement.timeout_s, values.failure.exchange_timeout_s);
        comm::Group& group = *request_.comm.group();
        group.prepare(step.device_handle, comm::deadline_in(most));
        step.sm_margin = values.attention.sm_margin.value_or(group.transfer_sms(step.device_handle.get()));
        step.margin_at_start = !values.attention.sm_margin;
      }
      for (std::size_t i = 0; i < request_.shapes.size(); ++i)
        step.shapes.push_back(assemble(values, draft, i));
      step.graph_documents = draft.graph.documents;
      step.recapture = draft.graph.recapture;
      if (step.recapture) ++request_.runtime.services.metrics->recaptures;
    } catch (const Error& error) {
      if (request_.comm.size() > 1) request_.comm.group()->fail(error);
      throw;
    } catch (const std::exception& error) {
      if (request_.comm.size() > 1) request_.comm.group()->fail(Error(ErrorCode::internal, error.what()));
      throw;
    }
  }

  PreparedShape assemble(const PolicyValues& values, const StepDraft& draft, std::size_t index) const {
    const Step::Impl& step = *draft.step;
    PreparedShape ps;
    ps.shape = request_.shapes[index];
    ps.attention = draft.prepared[index];
    if (request_.comm.size() > 1) {
      ps.exchange = std::make_unique<comm::KvExchange>(
          request_.comm.group(), draft.global, step.plan, ps.shape,
          comm::KvExchangeOptions{.path = step.decision.path,
                                  .payload_f32 = draft.options.payload_f32,
                                  .start_timeout_s = values.agreement.timeout_s,
                                  .timeout_s = values.failure.exchange_timeout_s,
                                  .device = step.device_handle,
                                  .meter = step.meter,
                                  .exposed = step.exposed,
                                  .cache = request_.runtime.services.cache.get()});
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

  const StepRequest& request_;
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
    const StepRequest request{*this, layout, shapes, comm, step_options, ticket};
    StepBuilder builder(request);
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
