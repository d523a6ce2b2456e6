// Group: one rank's membership: a host channel for agreement and failure, and stream-ordered data movement.
// Implementations: in-process ranks (threads) and processes. Collectives: same order on every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bdcp/error.h"
#include "bdcp/types.h"
#include "comm/call_ledger.h"
#include "device/device.h"

namespace bdcp::comm {

using Deadline = std::chrono::steady_clock::time_point;
/// `seconds` from now; negative, huge and NaN values are clamped.
Deadline deadline_in(double seconds);

/// Rows of [rows, heads, head_bytes] with byte strides; head_bytes are contiguous.
struct StridedRows {
  std::byte* data = nullptr;
  std::int64_t rows = 0, heads = 0, head_bytes = 0, row_stride = 0, head_stride = 0;
  std::int64_t bytes() const { return rows * heads * head_bytes; }
  bool contiguous() const { return head_stride == head_bytes && row_stride == heads * head_bytes; }
  StridedRows slice(std::int64_t begin, std::int64_t count) const {
    return {data + begin * row_stride, count, heads, head_bytes, row_stride, head_stride};
  }
};
StridedRows rows_of(ConstTensorView tensor);

/// One side of a transfer; both sides list matching rows, heads and head_bytes (strides may differ). Operations
/// between a pair of ranks match in order. Operations of zero bytes are skipped on both sides.
struct TransferOp {
  int peer = 0;
  StridedRows rows;
};

/// One gather; `all` holds size() * own.rows rows, rank r's at r * own.rows. Own rows are copied too unless
/// they already lie there.
struct GatherOp {
  StridedRows own, all;
};

/// Where data moves: host memory (complete on return) or a stream of a device (enqueued on return).
struct Lane {
  Stream stream;
  device::Device* device = nullptr;  ///< null: host
};

/// Slow is not dead: a live peer may be late to start by `start_s`; `run_s` counts from the moment every
/// participant has started.
struct TransferBounds {
  double start_s = 600, run_s = 120;
};

/// The host channel (all_gather_frames) and data movement (exchange, all_gather) are independent of each other:
/// one thread at a time may be in each, so a consensus round may run ahead while calls go on.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  virtual const std::vector<std::string>& hosts() const = 0;

  /// Every rank gives a frame and gets all frames by rank. Throws Error(timeout, naming the ranks that are
  /// missing) or Error(peer_failed).
  virtual std::vector<std::string> all_gather_frames(std::string frame, Deadline deadline) = 0;
  /// Moves rows between ranks. Source rows may be reused, and received rows read, by later work on the lane's
  /// stream. Every rank of the group takes part, with empty lists too. Throws Error(divergence) on every rank
  /// if the sides do not match, Error(timeout, naming the missing ranks), Error(peer_failed). Between processes
  /// on devices nobody waits for the others: what goes wrong is thrown by a later call, or by check().
  virtual void exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                        const TransferBounds& bounds) = 0;
  /// Several gathers as one operation; errors as for exchange.
  virtual void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) = 0;

  /// Throws the pending failure, if any. fail() records one on every member: first writer wins; waits end.
  virtual void check() const = 0;
  virtual void fail(const Error& error) = 0;

  /// Why lanes of `device` (null: host memory) cannot be served; empty if they can.
  virtual std::string why_not(device::Device* /*device*/) const { return {}; }
  /// What moves rows of `device`, after why_not(); equal on all ranks of a step.
  virtual std::string transport(device::Device* device) const {
    return device ? "copies in one process" : "host copies in one process";
  }
  /// Collective, on the thread of the host channel: whatever the first transfer on `device` needs.
  virtual void prepare(const std::shared_ptr<device::Device>& /*device*/, Deadline /*deadline*/) {}
  /// SMs of `device` that transfers occupy while they are in flight: what a kernel that fills the device should
  /// leave them.
  virtual int transfer_sms(device::Device* /*device*/) const { return 0; }
  /// True: rows with gaps have to be packed before they are sent from `device`.
  virtual bool contiguous_only(device::Device* /*device*/) const { return false; }
  /// False: this kind of group needs no heartbeats. Called with the same value on every rank.
  virtual bool set_heartbeat(double /*seconds*/) { return false; }

  /// This rank's calls on the group; Step records one entry per forward and backward.
  CallLedger& ledger() { return ledger_; }
  /// This rank's high-priority transfer stream on `device`, made on first use and owned by the group.
  void* transfer_stream(const std::shared_ptr<device::Device>& device);

 private:
  CallLedger ledger_;
  std::mutex streams_mutex_;
  std::vector<std::pair<device::Device*, device::OwnedStream>> streams_;
};

}  // namespace bdcp::comm
