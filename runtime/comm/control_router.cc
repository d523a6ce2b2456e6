#include "comm/control_router.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

namespace bdcp::comm {

using Type = ControlMessage::Type;
using Clock = std::chrono::steady_clock;

/// One connection of the tree. Ends by losing the peer, or with the peer's goodbye.
class ControlRouter::Link final : public Reactor::Watch {
 public:
  Link(ControlRouter& router, int peer, Fd fd)
      : router_(router),
        peer_(peer),
        fd_(std::move(fd)),
        reader_(max_message(router.tree_.size)),
        peer_interval_(router.heartbeat()),
        heard_(Clock::now()) {}

  int peer() const { return peer_; }
  bool said_goodbye = false;

  void send(const ControlMessage& message) {
    out_.push(to_frame(encode(message)));
    sent_ = Clock::now();
    flush();
  }
  void send_heartbeat() {
    ControlMessage message;
    message.rank = router_.tree_.rank;
    message.milliseconds = router_.heartbeat_ms_;
    send(message);
  }
  /// Without waiting: what the peer has not read yet is the system's to deliver.
  void close() {
    flush();
    if (fd_) (void)shutdown(fd_.get(), SHUT_WR);
    drain();  // unread bytes would turn the end of the stream into a reset, which may overtake what was sent
    finished = true;
  }

  int fd() const override { return fd_.get(); }
  bool wants_write() const override { return !out_.empty(); }
  Deadline due() const override { return std::min(silent_until(), sent_ + router_.heartbeat()); }
  void on_stall(Deadline::duration away) override { heard_ += away; }
  void on_exception(const std::string& what) override { router_.lost(*this, what); }

  void on_due() override {
    const Deadline now = Clock::now();
    if (now >= silent_until()) {
      // It is told as well: one that was only stopped then knows whose fault it was.
      router_.lost(
          *this, fmt::format("it was silent for {} heartbeats ({:.3g} s); its process is stopped, or its host "
                             "or network is gone",
                             kLostHeartbeats, std::chrono::duration<double>(now - heard_).count()));
      return close();
    }
    if (now < sent_ + router_.heartbeat()) return;
    if (out_.empty()) {
      send_heartbeat();
    } else {
      sent_ = now;  // the peer does not take what is already there
    }
  }

  void on_ready(bool readable, bool) override {
    flush();
    if (readable && !finished) read();
  }

 private:
  Deadline silent_until() const { return heard_ + kLostHeartbeats * peer_interval_; }
  void flush() {
    // A broken connection shows on the reading side too, after what the peer still said.
    if (!out_.flush(fd_.get())) out_ = WriteQueue();
  }
  void read() {
    std::array<char, 1 << 16> buffer{};
    for (int rounds = 0; rounds < 16; ++rounds) {  // other connections have a turn too
      const Moved got = read_some(fd_.get(), buffer.data(), buffer.size());
      if (got.bytes > 0) {
        heard_ = Clock::now();
        reader_.append({buffer.data(), got.bytes});
        std::string body;
        while (!finished && reader_.next(body)) take(body);
        if (!finished && !reader_.error().empty())
          end("its control connection is not sound: " + reader_.error());
      }
      if (got.closed && !finished)
        end(fmt::format("its control connection {}; its process has ended, or its host is gone",
                        got.error.empty() ? std::string("closed") : "broke (" + got.error + ")"));
      if (finished || got.bytes < buffer.size()) return;
    }
  }
  void take(const std::string& body) {
    std::optional<ControlMessage> message = decode(body, router_.tree_.size);
    if (!message) return end("its control connection is not sound: a malformed message");
    if (message->type == Type::heartbeat) {
      peer_interval_ = std::chrono::milliseconds(std::clamp<std::uint32_t>(message->milliseconds, 10, 3600000));
    } else {
      router_.from_link(*this, std::move(*message));
    }
  }
  void end(const std::string& why) {
    finished = true;
    fd_.reset();
    router_.lost(*this, why);
  }
  void drain() {
    std::array<char, 1 << 16> buffer{};
    while (fd_ && read_some(fd_.get(), buffer.data(), buffer.size()).bytes == buffer.size()) {
    }
  }

  ControlRouter& router_;
  const int peer_;
  Fd fd_;
  FrameReader reader_;
  WriteQueue out_;
  std::chrono::milliseconds peer_interval_;  // as the peer announced it
  Deadline heard_, sent_{};
};

ControlRouter::ControlRouter(Reactor& reactor, MeetingBoard& board, ReportBoard& reports, std::string group,
                             Tree tree, double heartbeat_s, std::shared_ptr<const Log> log)
    : reactor_(reactor),
      board_(board),
      reports_(reports),
      group_(std::move(group)),
      tree_(tree),
      log_(std::move(log)),
      heartbeat_ms_(0) {
  set_heartbeat(heartbeat_s);
  if (tree_.rank == 0) coordinator_.emplace(group_, tree_.size);
}

void ControlRouter::set_heartbeat(double seconds) {
  heartbeat_ms_ = static_cast<std::uint32_t>(std::clamp(seconds, 0.01, 3600.0) * 1000);
}

void ControlRouter::add_link(int peer, Fd fd) {
  if (links_.count(peer)) {
    log_->warn(fmt::format("group '{}', rank {}: dropped a second control connection of rank {}", group_,
                           tree_.rank, peer));
    return;
  }
  auto link = std::make_shared<Link>(*this, peer, std::move(fd));
  links_[peer] = link;
  reactor_.add(link);
  link->send_heartbeat();
  // What was spread before this connection existed.
  for (const int rank : board_.left()) {
    ControlMessage message;
    message.type = Type::leave;
    message.rank = rank;
    message.number = reports_.ranks()[static_cast<std::size_t>(rank)].started;
    link->send(message);
  }
  if (auto failure = board_.failure()) {
    ControlMessage message;
    message.type = Type::failure;
    message.failure = std::move(failure);
    link->send(message);
  }
  if (peer == tree_.parent())
    for (ControlMessage& message : std::exchange(waiting_for_parent_, {})) link->send(message);
}

void ControlRouter::spread(const ControlMessage& message, const Link* from) {
  for (const auto& [peer, link] : links_)
    if (link.get() != from && !link->finished) link->send(message);
}

void ControlRouter::submit(ControlMessage message) { up(std::move(message)); }

void ControlRouter::up(ControlMessage message) {
  if (!coordinator_) {
    const auto parent = links_.find(tree_.parent());
    if (parent == links_.end()) {
      waiting_for_parent_.push_back(std::move(message));
    } else if (!parent->second->finished) {
      parent->second->send(message);
    }
    return;
  }
  if (message.type == Type::expire) {
    if (auto error = coordinator_->expire(message.channel, message.number, message.milliseconds / 1000.0))
      raise({-1, true, std::move(*error)});
    return;
  }
  auto verdict = coordinator_->arrive(message.channel, message.rank, message.number, message.call,
                                      std::move(message.payload));
  if (!verdict) return;
  if (verdict->error) return raise({-1, true, std::move(*verdict->error)});
  ControlMessage complete;
  complete.type = Type::complete;
  complete.channel = message.channel;
  complete.call = message.call;
  complete.number = message.number;
  complete.payloads = std::move(verdict->payloads);
  down(std::move(complete));
}

void ControlRouter::down(ControlMessage message) {
  const auto parent = links_.find(tree_.parent());
  // The others first: whoever wakes up here may leave at once.
  spread(message, parent == links_.end() ? nullptr : parent->second.get());
  board_.complete(message.channel, message.number, std::move(message.payloads));
}

void ControlRouter::raise(Failure failure) {
  if (board_.record(failure)) announce(std::move(failure));
}

void ControlRouter::announce(Failure failure) {
  ControlMessage message;
  message.type = Type::failure;
  message.failure = std::move(failure);
  spread(message, nullptr);
}

void ControlRouter::from_link(Link& link, ControlMessage message) {
  const bool from_above = link.peer() == tree_.parent();
  switch (message.type) {
    case Type::arrive:
    case Type::expire:
      if (from_above || !tree_.below(link.peer(), message.rank))
        return raise({link.peer(), false,
                      Error(ErrorCode::internal, fmt::format("it speaks for rank {}", message.rank),
                            ErrorScope::communicator)});
      return up(std::move(message));
    case Type::complete:
      if (!from_above)
        return raise({link.peer(), false,
                      Error(ErrorCode::internal, "it declares a meeting complete", ErrorScope::communicator)});
      return down(std::move(message));
    case Type::failure:
      if (board_.record(*message.failure)) spread(message, &link);
      return;
    case Type::leave:
      if (message.rank == link.peer()) link.said_goodbye = true;
      reports_.record(message.rank, message.number, true);
      if (board_.leave(message.rank)) spread(message, &link);
      return;
    case Type::report:
      if (reports_.record(message.rank, message.number)) spread(message, &link);
      return;
    case Type::heartbeat:
      return;
  }
}

void ControlRouter::lost(Link& link, const std::string& why) {
  if (link.said_goodbye) return;
  if (!board_.failed())
    log_->warn(fmt::format("group '{}', rank {}: lost rank {}: {}", group_, tree_.rank, link.peer(), why));
  raise({link.peer(), false, Error(ErrorCode::peer_failed, why, ErrorScope::communicator)});
}

void ControlRouter::report(std::uint64_t number) {
  ControlMessage message;
  message.type = Type::report;
  message.rank = tree_.rank;
  message.number = number;
  spread(message, nullptr);
}

void ControlRouter::say_goodbye() {
  ControlMessage message;
  message.type = Type::leave;
  message.rank = tree_.rank;
  message.number = reports_.issued;
  spread(message, nullptr);
  for (const auto& [peer, link] : links_)
    if (!link->finished) link->close();
}

}  // namespace bdcp::comm
