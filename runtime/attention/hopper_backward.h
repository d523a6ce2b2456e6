// The backward of the Hopper backend: its kernels and work lists for one shape and one rank plan.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/device_list.h"
#include "attention/hopper_backward_config.h"
#include "kernel_templates/hopper_backward_args.h"

namespace bdcp::attention {

/// All kernels of the backward.
std::vector<jit::KernelSpec> hopper_backward_specs(const CallShape& shape, const std::string& arch,
                                                   const Options& options);

/// Immutable; safe for concurrent calls with distinct workspaces.
class HopperBackward {
 public:
  HopperBackward(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                 const PrepareContext& context);

  std::size_t workspace() const;
  /// Whether all tensors of the call are such that TMA and 16-byte accesses can take them.
  static bool takes(const BackwardCall& call);
  void launch(const BackwardCall& call, Part part, Stream stream) const;
  void append_kernels(std::vector<KernelInfo>& infos) const;

 private:
  enum Kernel { kDelta, kMain, kRound, kKernels };
  std::size_t values() const;  ///< bytes of LSE, or delta, of all rows
  std::size_t sums() const;
  std::size_t counters() const;
  kernel::HopperRowsArgs rows_args(const BackwardCall& call, Part part) const;
  void launch_one(Kernel which, std::size_t x, std::size_t y, unsigned threads, void* args,
                  Stream stream) const;

  CallShape shape_;
  plan::RankPlan plan_;
  Options options_;
  std::shared_ptr<device::Device> device_;
  HopperBackwardConfig config_;
  std::array<std::shared_ptr<const jit::CompiledKernel>, kKernels> compiled_;
  std::array<std::shared_ptr<const device::LoadedKernel>, kKernels> loaded_;
  DeviceList<kernel::HopperKeyTile> tiles_;
  DeviceList<kernel::HopperKeyRows> key_rows_;
  DeviceList<kernel::HopperRows> chunks_;
  DeviceList<kernel::Segment> segments_;
  std::size_t sum_blocks_ = 0;
};

}  // namespace bdcp::attention
