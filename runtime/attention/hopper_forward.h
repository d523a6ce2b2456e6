// The forward of the Hopper backend: its kernel and work lists for one shape and one rank plan.
#pragma once

#include <cstddef>
#include <memory>

#include "attention/backend.h"
#include "attention/device_list.h"
#include "attention/hopper_config.h"
#include "attention/prepared_kernels.h"
#include "kernel_templates/hopper_args.h"

namespace bdcp::attention {

/// Whether tiles of the document from an earlier rank begin with their local keys, as what is local lasts less
/// than the remote keys' way. Never where captured launches serve later layouts: those have world size 1.
bool may_stage(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout,
               const PrepareContext& context);

/// Immutable; safe for concurrent calls with distinct workspaces.
class HopperForward {
 public:
  /// `staged`: see may_stage(). `kernel`: of hopper_forward_spec for this shape and layout; it outlives this.
  HopperForward(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout, bool staged,
                const Options& options, const PrepareContext& context, const PreparedKernel& kernel);

  /// Kept from the local part to the remote one.
  std::size_t workspace() const { return states_ * groups() * hopper_state_bytes(shape_, config_); }
  bool has_work(Part part) const { return tiles_.size(part) > 0; }
  /// Whether TMA can read and write the call's tensors.
  static bool takes(const ForwardCall& call);
  /// A call of this shape and plan that takes() accepts, on a stream that may use the tables. `ticket`: see
  /// kernel::HopperForwardArgs.
  void launch(const ForwardCall& call, Part part, Stream stream, int* ticket) const;

 private:
  std::size_t groups() const { return static_cast<std::size_t>(shape_.heads_q / config_.pack); }
  void launch_tiles(kernel::HopperForwardArgs& args, const kernel::HopperTile* tiles, std::size_t count,
                    int heads_at_once, int sm_margin, Stream stream) const;

  CallShape shape_;
  std::int64_t remote_len_;
  std::shared_ptr<device::Device> device_;
  HopperForwardConfig config_;
  int border_shift_;
  const PreparedKernel& kernel_;
  DeviceList<kernel::HopperTile> tiles_;
  DeviceList<kernel::KeyRange> visible_;
  int heads_at_once_[2];    // by Part; groups of query heads
  std::size_t states_ = 0;  // tiles in two items
  /// The last local tiles, which run first beside a transfer that is about to start; all if they are too few to
  /// be worth a launch of their own.
  std::size_t opening_ = 0;
};

}  // namespace bdcp::attention
