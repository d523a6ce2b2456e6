// The ranks of a measurement: threads of this process, or one process each. A barrier, and an end when one of
// them fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "bdcp/communicator.h"

namespace bdcp::autotune {

class Team {
 public:
  /// All ranks in this process. World 1 has no channel and runs in the caller's thread.
  explicit Team(int world);
  /// This process is one of the communicator's ranks, and every process does the same.
  explicit Team(Communicator comm);
  /// The processes of a launcher, or `wanted` (default: 1) ranks of this process. Throws
  /// Error(invalid_argument) if a launcher started another number, and what making a communicator throws.
  static Team assemble(std::optional<int> wanted, const std::string& name, const Env& env);

  int world() const { return ranks_.front().size(); }
  /// Ranks in this process, and their numbers.
  int locals() const { return static_cast<int>(ranks_.size()); }
  int rank(int local) const { return comm(local).rank(); }
  const Communicator& comm(int local) const { return ranks_[static_cast<std::size_t>(local)]; }
  /// Whether this process has rank 0, which reports.
  bool leads() const { return rank(0) == 0; }

  using Barrier = std::function<void()>;
  /// body(local, barrier) on every rank at once; returns when those of this process have ended. A rank that
  /// throws fails the group, so that no other waits for it; the error that came first is rethrown.
  void run(const std::function<void(int local, const Barrier& barrier)>& body) const;

  /// The largest of all processes, one by one; on every process.
  void take_largest(std::vector<double>& values) const;
  /// What rank 0 has, on every process.
  std::uint64_t agree_on(std::uint64_t value) const;
  /// `whole` holds world() pieces of one size, by rank, of which this process has filled its own: then the
  /// leader has all.
  void collect(std::vector<std::byte>& whole) const;

 private:
  bool processes() const { return locals() < world(); }
  std::vector<Communicator> ranks_;
};

}  // namespace bdcp::autotune
