// A group of ranks that shard one packed sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bdcp/policy.h"

namespace bdcp {

namespace comm {
class Group;  // internal: host channel and data movement
}

struct InProcessOptions {
  std::string name = "cp";
  /// Host name per rank, to rehearse several nodes; empty: this host for all.
  std::vector<std::string> hosts = {};
};

/// How processes find each other and stay in touch.
struct ProcessOptions {
  /// Tells the groups of a job apart; also what a policy's `groups` entries match.
  std::string name = "cp";
  /// The members as ranks of the launcher's job, in group order (the group's rank r is ranks[r]); empty: all.
  std::vector<int> ranks = {};
  /// "host" or "host:port" where ranks[0] runs and the members of this group meet. Empty: BDCP_RENDEZVOUS, else
  /// what the launcher says; there the process of launcher rank 0 serves all groups of the job, so it must
  /// create a communicator too. Without a port one is derived from run id, restart count and the launcher's
  /// port.
  std::string rendezvous = {};
  /// Equal on all members, unknown to others; empty: BDCP_SECRET. Connections that do not prove it are dropped.
  std::string secret = {};
  /// Interface name or address to listen on; empty: BDCP_HOST_INTERFACE, else the one that reaches the
  /// rendezvous.
  std::string host_interface = {};
  /// Host identity of this rank, to rehearse several nodes on one; empty: this host's.
  std::string host = {};
  double timeout_s = 300;  ///< for all members to come
  /// Until the first step; from then on agreement.heartbeat_s of the policy. Five lost ones mean a dead peer.
  double heartbeat_s = 2;
  /// Receives lines about dropped connections and lost peers, on a thread of the communicator; must not call
  /// it. Empty: stderr.
  std::function<void(PolicyValues::LogLevel, std::string_view)> log_sink = {};
  /// Ignores BDCP_RENDEZVOUS, BDCP_SECRET and BDCP_HOST_INTERFACE.
  bool ignore_env = false;
};

/// Called once on each member: given rank 0's bytes on rank 0 and nothing elsewhere, returns rank 0's bytes.
using Broadcast = std::function<std::string(const std::string& bytes)>;

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
  /// This process's membership in a group of processes that torchrun, mpirun or srun started, one rank each;
  /// blocks until all members have come. Each rank has a device of its own (StepOptions::device; the first step
  /// on it sets up NCCL, which is looked for then), or all have host memory; the members talk over TCP, on one
  /// or two threads per communicator besides the callers'. Throws Error(invalid_argument) naming the variable
  /// or option, also if this process is no member; Error(timeout) naming who did not come; Error(io_error).
  /// After a failure the survivors may form a new communicator under another name. A world of one is self().
  static Communicator from_launcher(const ProcessOptions& options = {});
  /// The same for `size` processes without a known launcher, or threads of one process with a device each;
  /// `broadcast` carries the place to meet and a fresh secret from rank 0 to the others. `ranks`, `rendezvous`
  /// and `secret` of the options are not used. Errors that `broadcast` throws pass through.
  static Communicator from_broadcast(int rank, int size, const Broadcast& broadcast,
                                     const ProcessOptions& options = {});

  /// from_broadcast() over the members of an initialised ncclComm_t, which carries one small broadcast and is
  /// never aborted, destroyed or used again: a communicator of bdcp's own serves the steps, on any device of
  /// this rank. Collective over its ranks, from one thread each. Throws Error(library_missing, nccl_error)
  /// besides.
  static Communicator from_nccl(void* nccl_comm, const ProcessOptions& options = {});

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
