// ControlChannel: the host channel between the processes of a group: meetings, failures, heartbeats, and the
// connections that a data plane asks for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/control_router.h"
#include "comm/group.h"
#include "comm/handshake.h"
#include "comm/meeting_board.h"
#include "comm/reactor.h"
#include "comm/report_board.h"

namespace bdcp::comm {

/// What the rendezvous told every member alike, and who this one is.
struct Membership {
  int rank = 0, size = 1;
  std::string name, session, secret;
  std::vector<std::string> hosts;   ///< identity, by rank
  std::vector<Endpoint> endpoints;  ///< of each rank's listener
};

struct ChannelOptions {
  double heartbeat_s = 2;
  int arity = 32;  ///< of the control tree
  std::shared_ptr<const Log> log;
};

/// One thread of its own. All methods are thread safe; one thread at a time per Channel in meet(). Errors are
/// those of Group; after a fork the owner must not touch it.
class ControlChannel {
 public:
  ControlChannel(std::unique_ptr<Reactor> reactor, Fd listener, Membership membership,
                 const ChannelOptions& options);
  /// Tells the peers, waits for none.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Connects to the parent and meets everybody once. Throws Error(timeout) naming who is missing, or the
  /// failure of another rank: then up to kLostHeartbeats heartbeats later, so that ranks that are late learn of
  /// it too.
  void assemble(Deadline deadline);

  const Membership& membership() const { return membership_; }
  const Log& log() const { return *log_; }
  /// All ranks' payloads (of at most kMaxPayload bytes), by rank, once all have come.
  std::vector<std::string> meet(Channel channel, Call call, std::string payload, Deadline deadline);
  void check() const { board_.check(); }
  bool failed() const { return board_.failed(); }
  /// `rank` failed, as this rank sees it; or a finding that reads the same on all ranks. The first one wins.
  void fail(int rank, const Error& error);
  void fail_everywhere(const Error& error);
  /// Heartbeats go out at this interval from now on; peers learn of it and judge by it.
  void set_heartbeat(double seconds);
  double heartbeat() const { return heartbeat_s_; }
  /// Readable once the group has failed; for whoever waits for sockets of its own.
  int failure_fd() const { return board_.failure_fd(); }

  /// How far the ranks' stream-ordered transfers are.
  ReportBoard& reports() { return reports_; }
  /// Tells all ranks that this one has started its transfers up to `number`.
  void report(std::uint64_t number);

  /// A connection with `peer` alone; both sides ask for it once. The higher rank connects. Throws
  /// Error(timeout) naming the peer, or the pending failure.
  Fd data_link(int peer, Deadline deadline);

 private:
  std::string admit(const Hello& hello) const;
  void join_tree(Deadline deadline);
  Fd connect_to_rank(int peer, Purpose purpose, Deadline deadline);
  void record(Failure failure);
  [[noreturn]] void give_up_on(int peer, const std::string& why, Deadline start);

  const Membership membership_;
  const std::shared_ptr<const Log> log_;
  std::atomic<double> heartbeat_s_;
  MeetingBoard board_;
  ReportBoard reports_;
  std::mutex incoming_mutex_;
  std::map<int, Fd> incoming_;  // data connections nobody has asked for yet
  Signal came_in_;
  Signal all_children_;  // have connected
  std::unique_ptr<Reactor> reactor_;
  const Tree tree_;
  ControlRouter router_;
};

}  // namespace bdcp::comm
