#include "comm/control_channel.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "comm/acceptor.h"
#include "comm/text.h"

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Deadline start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

ControlChannel::ControlChannel(std::unique_ptr<Reactor> reactor, Fd listener, Membership membership,
                               const ChannelOptions& options)
    : membership_(std::move(membership)),
      log_(options.log),
      heartbeat_s_(options.heartbeat_s),
      board_(membership_.name, membership_.rank),
      reports_(membership_.size),
      reactor_(std::move(reactor)),
      tree_{membership_.rank, membership_.size, options.arity},
      router_(*reactor_, board_, reports_, membership_.name, tree_, options.heartbeat_s, log_) {
  auto accepted = [this](Fd fd, const Hello& hello) {
    const int rank = static_cast<int>(hello.rank);
    if (hello.purpose == Purpose::control) {
      router_.add_link(rank, std::move(fd));
      if (router_.has_all_children()) all_children_.set();
      return;
    }
    std::lock_guard lock(incoming_mutex_);
    incoming_[rank] = std::move(fd);
    came_in_.set();
  };
  auto acceptor = std::make_shared<Acceptor>(
      *reactor_, std::move(listener), membership_.secret,
      fmt::format("group '{}', rank {}", membership_.name, membership_.rank),
      [this](const Hello& hello) { return admit(hello); }, std::move(accepted), log_);
  reactor_->post([this, acceptor] { reactor_->add(acceptor); });
}

ControlChannel::~ControlChannel() {
  reactor_->post([this] { router_.say_goodbye(); });
  reactor_->stop();
}

std::string ControlChannel::admit(const Hello& hello) const {
  const int rank = static_cast<int>(hello.rank);
  if (hello.purpose == Purpose::join || hello.scope != membership_.session)
    return "it is no member of this communicator (another one, or an earlier incarnation)";
  if (rank >= membership_.size || rank <= membership_.rank)
    return fmt::format("rank {} does not connect to rank {}", rank, membership_.rank);
  if (hello.purpose == Purpose::control && tree_.parent_of(rank) != membership_.rank)
    return fmt::format("rank {} is not the parent of rank {}", membership_.rank, rank);
  return {};
}

Fd ControlChannel::connect_to_rank(int peer, Purpose purpose, Deadline deadline) {
  const Deadline start = Clock::now();
  const Endpoint& endpoint = membership_.endpoints[static_cast<std::size_t>(peer)];
  std::string why = "no attempt was made";
  // A peer may be slow to accept; a refusal is final only when the deadline is.
  for (auto pause = std::chrono::milliseconds(5);;
       pause = std::min(pause * 2, std::chrono::milliseconds(250))) {
    check();
    Fd fd = connect_to(endpoint, deadline, failure_fd(), why);
    if (fd) {
      ClientHandshake handshake(membership_.secret, {purpose, membership_.session, membership_.name, 0,
                                                     static_cast<std::uint32_t>(membership_.rank)});
      if (run_handshake(fd.get(), handshake, deadline, failure_fd(), why)) return fd;
      if (handshake.refused()) deadline = Clock::now();
    }
    check();
    if (Clock::now() >= deadline) give_up_on(peer, fmt::format("at {}: {}", to_text(endpoint), why), start);
    (void)wait_until_ready(-1, 0, std::min<Deadline>(deadline, Clock::now() + pause), failure_fd());
  }
}

void ControlChannel::give_up_on(int peer, const std::string& why, Deadline start) {
  Error error(ErrorCode::timeout,
              fmt::format("group '{}': rank {} has no connection with rank {} after {:.3g} s ({})",
                          membership_.name, membership_.rank, peer, seconds_since(start), why),
              ErrorScope::communicator);
  fail_everywhere(error.with_origin(peer));
  check();  // what was recorded first
  throw error;
}

void ControlChannel::assemble(Deadline deadline) {
  try {
    join_tree(deadline);
  } catch (const Error&) {
    // Who is still on the way here learns why, and not from a refused connection at the end of its time.
    if (tree_.children() > 0)
      (void)wait_until_ready(all_children_.fd(), POLLIN,
                             std::min(deadline, deadline_in(ControlRouter::kLostHeartbeats * heartbeat_s_)),
                             -1);
    throw;
  }
}

void ControlChannel::join_tree(Deadline deadline) {
  if (const int parent = tree_.parent(); parent >= 0) {
    Fd fd = connect_to_rank(parent, Purpose::control, deadline);
    // A task must be copyable, and owns what it holds until it runs.
    auto shared = std::make_shared<Fd>(std::move(fd));
    reactor_->post([this, parent, shared] { router_.add_link(parent, std::move(*shared)); });
  }
  (void)meet(Channel::frames, Call::creation, {}, deadline);
}

std::vector<std::string> ControlChannel::meet(Channel channel, Call call, std::string payload,
                                              Deadline deadline) {
  if (payload.size() > kMaxPayload)
    throw Error(ErrorCode::unsupported,
                fmt::format("group '{}': rank {} brings {} bytes to the {}; allowed are {}", membership_.name,
                            membership_.rank, payload.size(), to_string(call), kMaxPayload));
  const Deadline start = Clock::now();
  ControlMessage message;
  message.type = ControlMessage::Type::arrive;
  message.channel = channel;
  message.call = call;
  message.rank = membership_.rank;
  message.number = board_.begin(channel, call);
  message.payload = std::move(payload);
  const std::uint64_t number = message.number;
  const auto submit = [this](ControlMessage&& made) {
    reactor_->post([this, sent = std::move(made)] { router_.submit(sent); });
  };
  submit(std::move(message));
  std::vector<std::string> payloads;
  int left = -1;
  bool asked = false;
  for (;;) {
    const auto outcome = board_.wait(channel, number, call, deadline, payloads, left);
    if (outcome == MeetingBoard::Outcome::done) return payloads;
    if (outcome == MeetingBoard::Outcome::somebody_left) {
      fail(left, left_the_group());
    } else if (!asked) {
      // Rank 0 knows who is missing, and tells all.
      asked = true;
      ControlMessage late;
      late.type = ControlMessage::Type::expire;
      late.channel = channel;
      late.call = call;
      late.rank = membership_.rank;
      late.number = number;
      late.milliseconds = static_cast<std::uint32_t>(std::min(seconds_since(start) * 1000, 4e9));
      submit(std::move(late));
      deadline = deadline_in(ControlRouter::kLostHeartbeats * heartbeat_s_ + 1);
    } else {
      const int root = 0;
      fail_everywhere(did_not_come(membership_.name, {&root, 1}, call, seconds_since(start)));
    }
  }
}

void ControlChannel::record(Failure failure) {
  if (!board_.record(failure)) return;
  reactor_->post([this, failure = std::move(failure)] { router_.announce(failure); });
}

void ControlChannel::fail(int rank, const Error& error) { record({rank, false, error}); }
void ControlChannel::fail_everywhere(const Error& error) { record({-1, true, error}); }

void ControlChannel::set_heartbeat(double seconds) {
  if (heartbeat_s_.exchange(seconds) == seconds) return;
  router_.set_heartbeat(seconds);
  reactor_->post([] {});  // it may sleep by the old one
}

void ControlChannel::report(std::uint64_t number) {
  reactor_->post([this, number] { router_.report(number); });
}

Fd ControlChannel::data_link(int peer, Deadline deadline) {
  if (peer < membership_.rank) return connect_to_rank(peer, Purpose::data, deadline);
  const Deadline start = Clock::now();
  for (;;) {
    {
      std::lock_guard lock(incoming_mutex_);
      if (const auto found = incoming_.find(peer); found != incoming_.end()) {
        Fd fd = std::move(found->second);
        incoming_.erase(found);
        return fd;
      }
      came_in_.clear();
    }
    const Ready ready = wait_until_ready(came_in_.fd(), POLLIN, deadline, failure_fd());
    check();
    if (ready == Ready::timeout) give_up_on(peer, "it has not connected", start);
  }
}

}  // namespace bdcp::comm
