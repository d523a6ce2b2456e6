// Private to begin_step.cc and step_draft.cc: what one rank works out alone before it talks to the others.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "agreement.h"
#include "attention/options.h"
#include "graph_class.h"
#include "runtime_impl.h"

namespace bdcp {

/// What begin_step was called with.
struct StepRequest {
  Runtime::Impl& runtime;
  const DocLayout& layout;
  std::span<const CallShape> shapes;
  const Communicator& comm;
  const StepOptions& options;
  const Runtime::Impl::Ticket& ticket;
};

using PreparedShapes = std::vector<std::shared_ptr<const attention::PreparedAttention>>;

struct StepDraft {
  std::shared_ptr<Step::Impl> step;
  plan::GlobalPlan global;
  attention::Options options;
  GraphClass graph;
  PreparedShapes prepared;  ///< by shape, for `candidate`
  BackendKind candidate = BackendKind::automatic;
  std::optional<plan::PathCosts> costs;  ///< as measured; null: nothing says
  RankReport report;
};

/// Plan, device, and a verdict on every backend. Throws what keeps this rank from taking part; `draft` then
/// holds what there was until that point.
void make_draft(const StepRequest& request, const GroupPolicy& policy, StepDraft& draft);
/// Every shape on one backend, kernels included.
PreparedShapes prepare_shapes(const StepRequest& request, const attention::Backend& backend, StepDraft& draft);
/// Null: not part of this build.
const attention::Backend* find_backend(const Runtime::Impl& runtime, BackendKind kind);

}  // namespace bdcp
