// What every backend checks: shapes it is asked about, and the tensors of a call.
#pragma once

#include "attention/backend.h"

namespace bdcp::attention {

/// Rules all backends share: positive heads that divide, positive dims, finite scale > 0, dropout in [0, 1).
plan::Verdict check_shape(const CallShape& shape);

/// Throw Error(invalid_argument) naming the tensor if one does not have the plan's rows and the shape's heads,
/// dims and dtype, or if a backward is called of a shape that was prepared without.
void check_call(const CallShape& shape, const plan::RankPlan& plan, const ForwardCall& call);
void check_call(const CallShape& shape, const plan::RankPlan& plan, const BackwardCall& call, bool payload_f32);

/// Throws Error(invalid_argument) unless a backward call's workspace has the bytes and starts on 16 of them.
void check_workspace(const BufferView& workspace, std::size_t needed);

/// Throws Error(invalid_argument) unless the stream is of the device a call was prepared for.
void check_stream(const device::Device& device, Stream stream);

}  // namespace bdcp::attention
