#include "comm/rendezvous_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "comm/acceptor.h"
#include "comm/hmac.h"
#include "comm/text.h"

namespace bdcp::comm {
namespace {
constexpr double kNoticeEvery = 0.25;
}

/// A process that holds the secret.
class RendezvousHub::Visitor final : public Reactor::Watch, public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(const std::shared_ptr<RendezvousHub>& hub, Fd fd)
      : hub_(hub),
        fd_(std::move(fd)),
        reader_(kMaxJoin),
        from_(peer_endpoint(fd_.get())),
        here_(local_endpoint(fd_.get())) {}

  JoinRequest request;
  bool joined = false;
  const Endpoint& from() const { return from_; }
  /// The address under which this visitor knows the rendezvous' host.
  const Endpoint& here() const { return here_; }

  void send(const JoinAnswer& answer) {
    out_.push(to_frame(encode(answer)));
    if (!out_.flush(fd_.get())) leave();
  }

  int fd() const override { return fd_.get(); }
  bool wants_write() const override { return !out_.empty(); }
  void on_exception(const std::string& what) override {
    if (const auto hub = hub_.lock())
      hub->log_->warn(fmt::format("rendezvous: dropped {}: {}", to_text(from_), what));
    leave();
  }
  void on_ready(bool readable, bool) override {
    if (!out_.flush(fd_.get())) return leave();
    if (!readable) return;
    std::array<char, 1 << 14> buffer{};
    const Moved got = read_some(fd_.get(), buffer.data(), buffer.size());
    if (got.closed) return leave();
    reader_.append({buffer.data(), got.bytes});
    std::string body;
    if (reader_.next(body)) {
      std::optional<JoinRequest> asked = decode_join(body);
      if (!asked || joined) return on_exception("it sent a malformed request");
      if (const auto hub = hub_.lock()) hub->join(shared_from_this(), std::move(*asked));
    } else if (!reader_.error().empty()) {
      on_exception(reader_.error());
    }
  }

 private:
  void leave() {
    finished = true;
    if (const auto hub = hub_.lock()) hub->forget(*this);
    fd_.reset();
  }
  std::weak_ptr<RendezvousHub> hub_;  // which holds the visitors of its rooms
  Fd fd_;
  FrameReader reader_;
  WriteQueue out_;
  const Endpoint from_, here_;
};

RendezvousHub::RendezvousHub(Reactor& reactor, JobKey job, std::shared_ptr<const Log> log)
    : reactor_(reactor), job_(std::move(job)), log_(std::move(log)) {}

std::shared_ptr<RendezvousHub> RendezvousHub::start(Reactor& reactor, Fd listener, const JobKey& job,
                                                    const std::shared_ptr<const Log>& log) {
  std::shared_ptr<RendezvousHub> hub(new RendezvousHub(reactor, job, log));
  std::weak_ptr<RendezvousHub> weak = hub;
  auto acceptor = std::make_shared<Acceptor>(
      reactor, std::move(listener), job.secret, "rendezvous",
      [weak](const Hello& hello) {
        const auto alive = weak.lock();
        return alive ? alive->admit(hello) : std::string("it is closing");
      },
      [weak](Fd fd, const Hello&) {
        if (const auto alive = weak.lock())
          alive->reactor_.add(std::make_shared<Visitor>(alive, std::move(fd)));
      },
      log);
  reactor.post([&reactor, hub, acceptor] {
    reactor.add(hub);
    reactor.add(acceptor);
  });
  return hub;
}

std::string RendezvousHub::admit(const Hello& hello) const {
  if (hello.purpose != Purpose::join) return "this is a rendezvous, not a member";
  if (hello.scope != job_.run_id)
    return fmt::format("it is of run {}, this rendezvous of run {}", shortened(hello.scope),
                       shortened(job_.run_id));
  if (hello.restart != job_.restart)
    return fmt::format("it is of restart {}, this rendezvous of restart {}", hello.restart, job_.restart);
  return {};
}

void RendezvousHub::join(const std::shared_ptr<Visitor>& visitor, JoinRequest request) {
  visitor->request = std::move(request);
  visitor->joined = true;
  const JoinRequest& mine = visitor->request;
  if (rooms_.empty()) next_notice_ = deadline_in(kNoticeEvery);
  const auto key = std::make_pair(mine.group, mine.ranks.front());
  Room& room = rooms_[key];
  JoinAnswer no;
  no.type = JoinAnswer::Type::error;
  if (!room.empty() && room.begin()->second->request.ranks != mine.ranks) {
    const JoinRequest& other = room.begin()->second->request;
    no.error =
        fmt::format("group '{}': ranks disagree about its members: {} of the job says {}, {} says {}",
                    mine.group, other.ranks[static_cast<std::size_t>(other.rank)], ranks_text(other.ranks),
                    mine.ranks[static_cast<std::size_t>(mine.rank)], ranks_text(mine.ranks));
    Room all;
    all.swap(room);
    rooms_.erase(key);
    for (const auto& [rank, member] : all) member->send(no);
    visitor->send(no);
    return;
  }
  const auto [place, free] = room.emplace(mine.rank, visitor);
  if (!free) {
    no.error = fmt::format("group '{}': rank {} is here already, from {}", mine.group, mine.rank,
                           to_text(place->second->from()));
    visitor->joined = false;
    log_->warn(fmt::format("rendezvous: refused {}: {}", to_text(visitor->from()), no.error));
    visitor->send(no);
    return;
  }
  if (room.size() < mine.ranks.size()) return;
  Room all;
  all.swap(room);
  rooms_.erase(key);
  complete(all);
}

void RendezvousHub::complete(Room& room) {
  // Members of this host may know themselves by a loopback address, which means nothing elsewhere.
  std::string here;
  for (const auto& [rank, member] : room)
    if (!is_loopback(member->from().ip)) here = member->here().ip;
  JoinAnswer table;
  table.type = JoinAnswer::Type::table;
  table.session = random_bytes(32);
  for (const auto& [rank, member] : room) {
    table.hosts.push_back(member->request.host);
    table.endpoints.push_back(member->request.listener);
    if (!here.empty() && is_loopback(table.endpoints.back().ip)) table.endpoints.back().ip = here;
  }
  for (const auto& [rank, member] : room) {
    member->joined = false;
    member->send(table);
  }
}

void RendezvousHub::forget(const Visitor& visitor) {
  if (!visitor.joined) return;
  const auto found = rooms_.find({visitor.request.group, visitor.request.ranks.front()});
  if (found == rooms_.end()) return;
  const auto member = found->second.find(visitor.request.rank);
  if (member != found->second.end() && member->second.get() == &visitor) found->second.erase(member);
  if (found->second.empty()) rooms_.erase(found);
}

void RendezvousHub::on_due() {
  next_notice_ = deadline_in(kNoticeEvery);
  const auto rooms = rooms_;  // a member that is gone leaves its room
  for (const auto& [key, room] : rooms) {
    JoinAnswer notice;
    const int size = static_cast<int>(room.begin()->second->request.ranks.size());
    for (int rank = 0; rank < size; ++rank)
      if (!room.count(rank)) notice.missing.push_back(rank);
    for (const auto& [rank, member] : room) member->send(notice);
  }
}

void RendezvousHub::on_exception(const std::string& what) {
  log_->error(fmt::format("rendezvous: it failed: {}", what));
}

}  // namespace bdcp::comm
