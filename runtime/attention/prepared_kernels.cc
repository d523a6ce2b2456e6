#include "attention/prepared_kernels.h"

#include <mutex>

namespace bdcp::attention {
namespace {

// A model has a few shapes; more than this means that shapes are made up from step to step.
constexpr std::size_t kMostEntries = 64;

PreparedKernels load_all(const std::vector<jit::KernelSpec>& specs, const PrepareContext& context) {
  std::vector<std::string> errors;
  const auto compiled = context.cache->get_all(specs, &errors);
  PreparedKernels kernels;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    // A failed one is asked for again, so that its error arrives with code and log.
    kernels.push_back({compiled[i] ? compiled[i] : context.cache->get(specs[i]),
                       context.cache->load(specs[i], context.device)});
  }
  return kernels;
}

}  // namespace

std::shared_ptr<const PreparedKernels> KernelMemo::find(const Key& key) const {
  std::shared_lock lock(mutex_);
  for (const auto& entry : entries_)
    if (entry.first == key) return entry.second;
  return nullptr;
}

std::shared_ptr<const PreparedKernels> KernelMemo::get(
    const CallShape& shape, const Options& options, int variant, const PrepareContext& context,
    const std::function<std::vector<jit::KernelSpec>()>& make_specs) {
  Key key{shape, options, variant, context.cache, context.device.get()};
  // No kernel is specialised for these values.
  key.shape.scale.reset();
  key.shape.dropout_p = shape.dropout_p > 0 ? 0.5 : 0;
  if (auto found = find(key)) return found;
  const std::vector<jit::KernelSpec> specs = make_specs();
  auto kernels = std::make_shared<const PreparedKernels>(load_all(specs, context));
  // Later steps find them in memory, and their reports say so.
  auto later = std::make_shared<PreparedKernels>(*kernels);
  for (std::size_t i = 0; i < specs.size(); ++i) (*later)[i].compiled = context.cache->get(specs[i]);
  std::unique_lock lock(mutex_);
  if (entries_.size() >= kMostEntries) entries_.clear();
  entries_.emplace_back(key, std::move(later));
  return kernels;
}

}  // namespace bdcp::attention
