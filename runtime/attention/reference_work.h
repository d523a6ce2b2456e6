// What the reference kernels are launched with: the work list of a rank plan, and the arguments of a call.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "kernel_templates/kernel_args.h"

namespace bdcp::attention {

constexpr int kReferenceRows = 32;  // kTile of reference_common.cuh

/// One item per CTA and head: at most kReferenceRows query rows (forward, dQ) or key positions (dK and dV) of
/// one segment, costliest first. Items without a segment are padding; those belong to the local part.
struct ReferenceWork {
  struct Items {
    std::vector<kernel::ReferenceItem> local, remote;
  };
  std::vector<kernel::Segment> segments;
  Items rows, keys;
};

/// Throws Error(unsupported) if indices or the grid would not fit in 31 bits.
ReferenceWork make_reference_work(const plan::RankPlan& plan, const CallShape& shape);

/// Everything but `segments` and `items`.
kernel::ReferenceForwardArgs reference_args(const CallShape& shape, const plan::RankPlan& plan,
                                            const ForwardCall& call);
/// call.workspace.data: f32 [heads_q][rows] for delta.
kernel::ReferenceBackwardArgs reference_args(const CallShape& shape, const plan::RankPlan& plan,
                                             const BackwardCall& call);

}  // namespace bdcp::attention
