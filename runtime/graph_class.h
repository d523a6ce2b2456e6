// Which steps captured calls can serve: what StepOptions::graph_documents and reuse come to for one step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "bdcp/runtime.h"
#include "step_impl.h"

namespace bdcp {

struct GraphClass {
  std::int64_t documents = 0;  ///< that lists have room for; 0: captured calls serve no other step
  std::shared_ptr<const Step::Impl> earlier;  ///< of the class the step may join; null: it is a class's first
  std::optional<Recapture> recapture;         ///< why not that of `reuse`
};

/// Judges what is known before kernels are chosen. `step` has its device and plan. Throws
/// Error(invalid_argument or unsupported) naming the option.
GraphClass graph_class(const StepOptions& options, const Step::Impl& step, std::span<const CallShape> shapes);

/// Kernels are there, and lists have been added to `tables` with room for `graph.documents`: takes the earlier
/// step's place on the device or, where it runs other kernels, says so in `graph` and uploads.
void place_tables(GraphClass& graph, BackendKind backend,
                  std::span<const std::shared_ptr<const attention::PreparedAttention>> prepared,
                  device::Tables& tables);

}  // namespace bdcp
