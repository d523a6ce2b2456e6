// ControlRouter: one rank's connections of the control tree, and the messages that pass through it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/control_message.h"
#include "comm/coordinator.h"
#include "comm/meeting_board.h"
#include "comm/reactor.h"
#include "comm/report_board.h"
#include "comm/wire.h"

namespace bdcp::comm {

/// Ranks form a tree: rank r's parent is (r - 1) / arity. Up to arity + 1 ranks that is a star; beyond, a
/// message takes a few hops and no rank has more than arity + 1 connections. Whoever dies, every component that
/// is left is next to it, so all survivors learn of it.
struct Tree {
  int rank = 0, size = 1, arity = 32;
  int parent() const { return parent_of(rank); }
  int parent_of(int of) const { return of == 0 ? -1 : (of - 1) / arity; }
  /// Ranks that connect to this one.
  std::size_t children() const {
    const std::int64_t first = std::int64_t{rank} * arity + 1;
    return static_cast<std::size_t>(std::clamp<std::int64_t>(size - first, 0, arity));
  }
  /// Whether `of` reaches the root through `child`.
  bool below(int child, int of) const {
    while (of > child) of = parent_of(of);
    return of == child;
  }
};

/// Lives on the reactor's thread: every method is called there, but for set_heartbeat.
class ControlRouter {
 public:
  static constexpr int kLostHeartbeats = 5;

  ControlRouter(Reactor& reactor, MeetingBoard& board, ReportBoard& reports, std::string group, Tree tree,
                double heartbeat_s, std::shared_ptr<const Log> log);
  /// A connection whose other end has shown that it is `peer`.
  void add_link(int peer, Fd fd);
  /// Whether every rank that connects to this one has, alive or not.
  bool has_all_children() const { return links_.size() - links_.count(tree_.parent()) == tree_.children(); }
  /// From this rank's own callers.
  void submit(ControlMessage message);
  /// A failure that this rank saw first: to the board and to all others.
  void raise(Failure failure);
  /// One that the board holds already: to all others.
  void announce(Failure failure);
  /// This rank has started its transfers up to `number`: to all others.
  void report(std::uint64_t number);
  /// Tells the others that this rank's handle is gone, as far as the sockets take it now.
  void say_goodbye();
  void set_heartbeat(double seconds);

 private:
  class Link;
  void from_link(Link& link, ControlMessage message);
  void lost(Link& link, const std::string& why);
  void up(ControlMessage message);
  void down(ControlMessage message);
  void spread(const ControlMessage& message, const Link* from);
  std::chrono::milliseconds heartbeat() const { return std::chrono::milliseconds(heartbeat_ms_.load()); }

  Reactor& reactor_;
  MeetingBoard& board_;
  ReportBoard& reports_;
  const std::string group_;
  const Tree tree_;
  const std::shared_ptr<const Log> log_;
  std::atomic<std::uint32_t> heartbeat_ms_;
  std::optional<Coordinator> coordinator_;  // at rank 0
  std::map<int, std::shared_ptr<Link>> links_;
  std::vector<ControlMessage> waiting_for_parent_;
};

}  // namespace bdcp::comm
