// StreamPlane: how a group of processes moves rows between devices, enqueued on a stream, behind one control
// channel.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/group.h"

namespace bdcp::comm {

/// exchange() and all_gather() are those of Group but for one thing: no host waits for another rank, so the
/// sides of a transfer are not compared. They come from a plan that the ranks have agreed on. One thread at a
/// time.
class StreamPlane {
 public:
  virtual ~StreamPlane() = default;
  /// Empty: lanes of `device` can be served. Cheap, no collective.
  virtual std::string why_not(device::Device& device) = 0;
  /// Equal on all ranks that can talk to each other; after why_not().
  virtual std::string describe() const = 0;
  /// See Group::transfer_sms.
  virtual int transfer_sms() const { return 0; }
  /// Collective, on the frames' thread: sets up what the first transfer needs. Later calls do nothing.
  virtual void prepare(const std::shared_ptr<device::Device>& device, Deadline deadline) = 0;
  virtual void exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                        const TransferBounds& bounds) = 0;
  virtual void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) = 0;
};

}  // namespace bdcp::comm
