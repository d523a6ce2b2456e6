// The backward of the Hopper backend: its kernels and work lists for one shape and one rank plan.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/device_list.h"
#include "attention/hopper_backward_config.h"
#include "attention/hopper_backward_work.h"
#include "attention/prepared_kernels.h"
#include "kernel_templates/hopper_backward_args.h"

namespace bdcp::attention {

/// Whether the backward of such a step takes the kernel for rows that have all their keys in one tile. Not
/// where captured launches serve later layouts; nor where batch invariance is asked for, as that kernel rounds
/// in another way, and a document may not notice what it is packed with.
bool has_whole_rows_only(const CallShape& shape, const plan::RankPlan& plan, const Options& options,
                         const GraphRoom& room);

/// All kernels of the backward, in the order HopperBackward takes them. `whole`: has_whole_rows_only().
std::vector<jit::KernelSpec> hopper_backward_specs(const CallShape& shape, bool whole, const std::string& arch,
                                                   const Options& options);

/// Immutable; safe for concurrent calls with distinct workspaces.
class HopperBackward {
 public:
  /// `kernels`: of hopper_backward_specs with the same `whole`; they outlive this.
  HopperBackward(const CallShape& shape, const plan::RankPlan& plan, bool whole, const Options& options,
                 const PrepareContext& context, std::span<const PreparedKernel> kernels);

  std::size_t workspace() const { return workspace_.end; }
  /// Whether the call's tensors are such that TMA and 16-byte accesses can take them.
  bool takes(const BackwardCall& call) const;
  /// A call of this shape and plan that takes() accepts, on a stream that may use the tables.
  void launch(const BackwardCall& call, Part part, Stream stream) const;

 private:
  enum Kernel { kDelta, kMain, kRound };
  std::size_t split_tiles(Part part) const { return part == Part::local ? split_local_ : split_remote_; }
  std::size_t items(Part part) const;
  /// `row_bytes`: of what an item reads and adds to, one query head for each of K/V.
  int choose_heads_at_once(const HopperBackwardWork& work, Part part, std::int64_t row_bytes,
                           const PrepareContext& context) const;
  /// Whether long tiles have an item per q head.
  bool splits(const plan::RankPlan& plan, const Options& options, const GraphRoom& room) const;
  /// Blocks of rows between the beginnings of tiles with the same rows.
  int stagger(const plan::RankPlan& plan, const Options& options, const GraphRoom& room) const;
  /// In bytes; LSE comes first.
  struct Workspace {
    std::size_t delta = 0, sums = 0, counters = 0, part_counts = 0, parts = 0, end = 0;
  };
  Workspace lay_out() const;
  kernel::HopperRowsArgs rows_args(const BackwardCall& call, Part part) const;
  void launch_one(Kernel which, std::size_t x, std::size_t y, unsigned threads, void* args,
                  Stream stream) const;

  CallShape shape_;
  plan::RankPlan plan_;
  bool payload_f32_;
  std::shared_ptr<device::Device> device_;
  HopperBackwardConfig config_;
  std::span<const PreparedKernel> kernels_;
  DeviceList<kernel::HopperKeyTile> tiles_;
  DeviceList<kernel::HopperKeyRows> key_rows_;
  DeviceList<kernel::HopperRows> chunks_;
  DeviceList<kernel::Segment> segments_;
  std::size_t sum_blocks_ = 0;
  std::size_t split_local_ = 0, split_remote_ = 0, ring_ = 0;
  int heads_at_once_[2];  // by Part; of K/V
  Workspace workspace_;
};

}  // namespace bdcp::attention
