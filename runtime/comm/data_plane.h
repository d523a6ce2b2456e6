// DataPlane: how a group of processes moves rows of host memory, behind one control channel. Devices have
// stream_plane.h.
#pragma once

#include <cstdint>
#include <span>

#include "comm/control_channel.h"
#include "comm/group.h"

namespace bdcp::comm {

/// One thread at a time. Before transfer() every rank has come, and the sides are known to match; after it the
/// ranks meet again. What a plane needs to set up (identifiers, handles) it exchanges by ControlChannel::meet
/// on Channel::data, in the constructor.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  /// Throws Error(timeout, naming the peer that is behind), or the channel's pending failure. A wait must end
  /// when ControlChannel::failure_fd() becomes readable.
  virtual void transfer(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                        Call call, Deadline deadline) = 0;
};

}  // namespace bdcp::comm
