// The ranks of one process: a thread each, with a barrier, and an end when one of them fails.
#pragma once

#include <functional>
#include <vector>

#include "bdcp/communicator.h"

namespace bdcp::bench {

class Team {
 public:
  /// World 1 has no channel and runs in the caller's thread.
  explicit Team(int world);
  int world() const { return static_cast<int>(ranks_.size()); }
  const Communicator& comm(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  using Barrier = std::function<void()>;
  /// body(rank, barrier) on every rank at once; returns when all have ended. A rank that throws fails the
  /// group, so that no other waits for it; the error that came first is rethrown.
  void run(const std::function<void(int rank, const Barrier& barrier)>& body) const;

 private:
  std::vector<Communicator> ranks_;
};

}  // namespace bdcp::bench
