// The forward of the Hopper backend: its kernel and work lists for one shape and one rank plan.
#pragma once

#include <cstddef>
#include <memory>

#include "attention/backend.h"
#include "attention/device_list.h"
#include "attention/hopper_config.h"
#include "attention/hopper_work.h"
#include "attention/prepared_kernels.h"
#include "kernel_templates/hopper_args.h"

namespace bdcp::attention {

/// What a forward works on, and how many of its tiles are in two items: tiles of the document from an earlier
/// rank begin with their local keys where what else is local lasts less than the remote keys' way. None where
/// captured launches serve later layouts: those have world size 1.
struct HopperForwardWork {
  HopperWork work;
  std::size_t states = 0;
};
HopperForwardWork make_forward_work(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout,
                                    const Options& options, const PrepareContext& context);

/// Immutable; safe for concurrent calls with distinct workspaces.
class HopperForward {
 public:
  /// `work`: of make_forward_work() for the same arguments. `kernel`: of hopper_forward_spec for this shape and
  /// layout, staged if the work has states; it outlives this.
  HopperForward(const CallShape& shape, const plan::RankPlan& plan, HopperLayout layout, HopperForwardWork work,
                const PrepareContext& context, const PreparedKernel& kernel);

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
  int heads_at_once_[2];  // by Part; groups of query heads
  std::size_t states_;    // tiles in two items
  /// The last local tiles, which run first beside a transfer that is about to start; all if they are too few to
  /// be worth a launch of their own.
  std::size_t opening_ = 0;
};

}  // namespace bdcp::attention
