#include "graph_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace bdcp {
namespace {

/// Device, shapes and sizes are in the captured launches themselves.
std::optional<Recapture> other_sizes(const Step::Impl& earlier, const Step::Impl& step,
                                     std::span<const CallShape> shapes) {
  const auto different = [](const char* code, std::string text) { return Recapture{code, std::move(text)}; };
  if (step.device != earlier.device)
    return different("device", fmt::format("the step is on device {}, options.reuse on device {}", step.device,
                                           earlier.device));
  const bool same_shapes =
      std::equal(shapes.begin(), shapes.end(), earlier.shapes.begin(), earlier.shapes.end(),
                 [](const CallShape& shape, const PreparedShape& prepared) { return shape == prepared.shape; });
  if (!same_shapes) return different("shapes", "the call shapes are not those of options.reuse");
  if (step.plan.rows != earlier.plan.rows || step.plan.key_rows != earlier.plan.key_rows)
    return different(
        "tokens",
        fmt::format("the layout has {} query and {} key tokens with padding, that of options.reuse {} "
                    "and {}; LayoutOptions::padding_tokens can make them equal",
                    step.plan.rows, step.plan.key_rows, earlier.plan.rows, earlier.plan.key_rows));
  if (step.layout.documents() > earlier.graph_documents)
    return different("documents", fmt::format("the layout has {} documents, and options.reuse has room for {}",
                                              step.layout.documents(), earlier.graph_documents));
  return std::nullopt;
}

bool same_kernels(const attention::PreparedAttention& a, const attention::PreparedAttention& b) {
  const std::vector<KernelInfo> left = a.kernels(), right = b.kernels();
  return std::equal(
      left.begin(), left.end(), right.begin(), right.end(),
      [](const KernelInfo& x, const KernelInfo& y) { return x.key == y.key && x.arch == y.arch; });
}

std::optional<Recapture> other_kernels(
    const Step::Impl& earlier, BackendKind backend,
    std::span<const std::shared_ptr<const attention::PreparedAttention>> prepared) {
  if (backend != earlier.decision.backend)
    return Recapture{"backend", fmt::format("the step runs on backend {}, options.reuse on {}",
                                            to_string(backend), to_string(earlier.decision.backend))};
  for (std::size_t i = 0; i < prepared.size(); ++i)
    if (!same_kernels(*prepared[i], *earlier.shapes[i].attention))
      return Recapture{
          "kernels",
          fmt::format("shape {} runs other kernels than in options.reuse: the documents are of another length "
                      "class, or the policy has changed",
                      i)};
  return std::nullopt;
}

}  // namespace

GraphClass graph_class(const StepOptions& options, const Step::Impl& step, std::span<const CallShape> shapes) {
  GraphClass graph;
  require(options.graph_documents >= 0, ErrorCode::invalid_argument, [&] {
    return fmt::format("options.graph_documents is {}; allowed: 0 or more", options.graph_documents);
  });
  if (options.graph_documents == 0 && !options.reuse) return graph;
  require(step.comm.size() == 1, ErrorCode::unsupported, [&] {
    return fmt::format(
        "options.graph_documents, options.reuse: communicator '{}' has {} ranks, and an exchange cannot be "
        "captured in this build; allowed: world size 1",
        step.comm.name(), step.comm.size());
  });
  require(step.device >= 0, ErrorCode::unsupported,
          "options.graph_documents, options.reuse: the step is on the host, which has no CUDA graphs; allowed: "
          "a CUDA device");
  const std::int64_t documents = step.layout.documents();
  graph.documents = options.graph_documents;
  if (!options.reuse) {
    require(documents <= graph.documents, ErrorCode::invalid_argument, [&] {
      return fmt::format(
          "options.graph_documents is {}; the layout has {} documents, allowed: at least as many",
          graph.documents, documents);
    });
  } else {
    const std::shared_ptr<Step::Impl>& earlier = options.reuse->impl();
    require(earlier->graph_documents > 0, ErrorCode::invalid_argument,
            "options.reuse is a step that was begun without graph_documents");
    graph.recapture = other_sizes(*earlier, step, shapes);
    graph.documents = earlier->graph_documents;
    if (!graph.recapture) {
      graph.earlier = earlier;
      return graph;
    }
    graph.documents = std::max(graph.documents, options.graph_documents);
    if (documents > graph.documents)
      graph.documents = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents)));
  }
  // Every document has a row or a key.
  graph.documents = std::clamp<std::int64_t>(graph.documents, 1, step.plan.rows + step.plan.key_rows + 1);
  return graph;
}

void place_tables(GraphClass& graph, BackendKind backend,
                  std::span<const std::shared_ptr<const attention::PreparedAttention>> prepared,
                  device::Tables& tables) {
  if (graph.earlier) {
    graph.recapture = other_kernels(*graph.earlier, backend, prepared);
    if (!graph.recapture) return tables.join(graph.earlier->tables);
    graph.earlier = nullptr;
  }
  tables.upload();
}

}  // namespace bdcp
