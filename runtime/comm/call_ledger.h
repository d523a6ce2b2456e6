// CallLedger: what one rank has called on its group so far, so that the next consensus round can name the first
// difference.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bdcp/types.h"

namespace bdcp::comm {

struct CallEntry {
  std::uint64_t step = 0, call = 0;
  Direction direction = Direction::forward;
  friend bool operator==(const CallEntry&, const CallEntry&) = default;
};

/// The state of a ledger at one moment of a rank's program order.
struct LedgerSnapshot {
  std::uint64_t count = 0, digest = 0;
  std::vector<CallEntry> recent;  ///< the last entries, oldest first
  /// "count:digest": equal iff the sequences are.
  std::string value() const;
  /// Index of recent.front() in the whole sequence.
  std::uint64_t first() const { return count - recent.size(); }
  friend bool operator==(const LedgerSnapshot&, const LedgerSnapshot&) = default;
};

/// Sequence of (step, direction, call): a running digest and the last kKept entries. Thread safe; never
/// allocates after construction except in snapshot().
class CallLedger {
 public:
  static constexpr std::size_t kKept = 64;
  CallLedger() : ring_(kKept) {}
  void record(std::uint64_t step, Direction direction, std::uint64_t call);
  /// Take it on the thread that issues the step, when it is issued: a background thread would see calls that
  /// came later.
  LedgerSnapshot snapshot() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CallEntry> ring_;
  std::uint64_t count_ = 0, digest_ = 0;
};

/// "call 17: ranks 0, 2 did (step 3, fwd, call 5), rank 1 did (step 3, bwd, call 0)". Empty if all are equal.
std::string describe_ledger_difference(std::span<const LedgerSnapshot> by_rank);

}  // namespace bdcp::comm
