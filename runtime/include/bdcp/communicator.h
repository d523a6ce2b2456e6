// A group of ranks that shard one packed sequence.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace bdcp {

namespace comm {
class Group;  // internal: host channel and data movement
}

struct InProcessOptions {
  std::string name = "cp";
  /// Host name per rank, to rehearse several nodes; empty: this host for all.
  std::vector<std::string> hosts = {};
};

/// A cheap, copyable handle of one rank's membership. Collectives are issued from one thread at a time per
/// rank (a begin_step may run beside forward and backward); destroying the last handle never blocks, and peers
/// that still wait for this rank get Error(peer_failed). In a forked child collectives, check() and
/// abort() throw Error(forked).
class Communicator {
 public:
  /// A world of one rank; no channel at all.
  Communicator();
  static Communicator self() { return Communicator(); }
  /// `world_size` ranks of this process, one handle per rank, each to be driven by a thread of its own. Throws
  /// Error(invalid_argument) if world_size < 1 or options.hosts has a different number of entries.
  static std::vector<Communicator> in_process(int world_size, const InProcessOptions& options = {});

  int rank() const;
  int size() const;
  const std::string& name() const;
  /// Host identity of every member, by rank.
  const std::vector<std::string>& hosts() const;
  /// Throws the pending failure of this communicator, if any.
  void check() const;
  /// Marks the communicator failed on every member, naming this rank and `reason`; waits end. The first failure
  /// wins. A world of one has nobody to tell: nothing happens.
  void abort(const std::string& reason) const;

  /// Internal access for bdcp's own modules; null for self().
  const std::shared_ptr<comm::Group>& group() const { return group_; }
  explicit Communicator(std::shared_ptr<comm::Group> group);

 private:
  struct Single;
  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<Single> single_;  // instead of a group in a world of one
};

}  // namespace bdcp
