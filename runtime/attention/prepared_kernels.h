// The kernels of a call shape, remembered by a backend from step to step.
#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "attention/backend.h"

namespace bdcp::attention {

struct PreparedKernel {
  std::shared_ptr<const jit::CompiledKernel> compiled;
  std::shared_ptr<const device::LoadedKernel> loaded;
};
/// `args`: the kernel's one parameter. `early`: see device::Device::launch.
inline void launch(device::Device& device, const PreparedKernel& kernel, device::Dim3 grid, unsigned threads,
                   void* args, Stream stream, bool early = false) {
  void* parameters[] = {args};
  device.launch(*kernel.loaded, grid, {threads, 1, 1},
                static_cast<unsigned>(kernel.compiled->spec.dynamic_smem), stream.handle, parameters, early);
}

/// In the order of the specs asked for.
using PreparedKernels = std::vector<PreparedKernel>;

/// Saves a warm begin_step from rendering and hashing specs. Thread safe.
class KernelMemo {
 public:
  /// What the specs depend on. The cache outlives the memo; devices are kept alive by their kernels.
  struct Key {
    CallShape shape;
    Options options;
    int variant = 0;  ///< of the layout, where a backend has several kernels for a shape
    const jit::KernelCache* cache = nullptr;
    const device::Device* device = nullptr;
    friend bool operator==(const Key&, const Key&) = default;
  };

  /// The remembered kernels, or those of make_specs(), compiled at once, so that a cold step takes as long as
  /// the slowest of them. Errors as jit::KernelCache throws them.
  std::shared_ptr<const PreparedKernels> get(const CallShape& shape, const Options& options, int variant,
                                             const PrepareContext& context,
                                             const std::function<std::vector<jit::KernelSpec>()>& make_specs);

 private:
  std::shared_ptr<const PreparedKernels> find(const Key& key) const;

  mutable std::shared_mutex mutex_;
  std::vector<std::pair<Key, std::shared_ptr<const PreparedKernels>>> entries_;
};

}  // namespace bdcp::attention
