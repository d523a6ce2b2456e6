// Rendezvous: where the threads of an in-process group meet. Two independent channels, one pending failure,
// bounded waits.
#pragma once

#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/meeting.h"

namespace bdcp::comm {

/// Shared by all ranks of a group. Every method throws Error(forked) in a child process; meet() and check()
/// throw the pending failure. A failure is final: the first one wins and every later call sees it.
class Rendezvous {
 public:
  Rendezvous(std::string name, int size);

  /// Blocks until every rank is in its meeting of the same number on `channel`; what a rank wrote before is
  /// seen by all after. Throws Error(divergence) on all ranks if they are in different calls, Error(timeout) on
  /// all ranks naming those missing at the deadline, Error(peer_failed) if a missing rank has left.
  void meet(Channel channel, int rank, Call call, Deadline deadline);

  void check(int rank) const;
  /// Records `error` as coming from `rank`.
  void fail(int rank, const Error& error);
  /// Records an error that is a finding about the group and reads the same on every rank.
  void fail_everywhere(const Error& error);
  /// `rank` destroyed its handle: peers that need it fail. Never blocks or throws; does nothing after a fork.
  void leave(int rank) noexcept;

  /// While one lives, a rank reads what its peers published (memory included). Throws the pending failure.
  class Reading {
   public:
    Reading(Rendezvous& rendezvous, int rank);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    Rendezvous& rendezvous_;
  };
  /// Waits until no rank reads (bounded by the length of a copy). A failed rank calls it before its memory may
  /// go away; nobody starts to read after a failure.
  void settle();

  const std::string& name() const { return name_; }

 private:
  struct Lane {
    std::vector<std::uint64_t> arrived;
    std::vector<Call> calls;
    std::uint64_t completed = 0;
    int pending = 0;
  };

  void require_same_process() const;
  void throw_if_failed(int rank) const;                        // under the lock
  void record(Failure failure);                                // under the lock
  std::vector<int> missing(const Lane& lane) const;            // under the lock
  std::optional<int> departed(const std::vector<int>&) const;  // under the lock

  const std::string name_;
  const int size_;
  const pid_t process_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Lane, 2> lanes_;
  std::vector<bool> left_;
  std::optional<Failure> failure_;
  int readers_ = 0;
};

}  // namespace bdcp::comm
