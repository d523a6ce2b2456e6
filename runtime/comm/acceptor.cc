#include "comm/acceptor.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <deque>
#include <utility>

namespace bdcp::comm {

struct Acceptor::Shared {
  std::string secret, what;
  ServerHandshake::Admit admit;
  Accepted accepted;
  std::shared_ptr<const Log> log;
  std::deque<std::weak_ptr<Stranger>> waiting;
  // Lines about dropped peers: a port scanner must not fill a disk.
  Deadline window{};
  int lines = 0, silent = 0;

  void report(const std::string& peer, const std::string& why) {
    const Deadline now = std::chrono::steady_clock::now();
    if (now >= window) {
      if (silent > 0) log->warn(fmt::format("{}: dropped {} more connections", what, silent));
      window = now + std::chrono::seconds(10);
      lines = silent = 0;
    }
    if (++lines > 20) {
      ++silent;
      return;
    }
    log->warn(fmt::format("{}: dropped a connection from {}: {}", what, peer, why));
  }
};

class Acceptor::Stranger final : public Reactor::Watch {
 public:
  Stranger(std::shared_ptr<Shared> shared, Fd fd)
      : shared_(std::move(shared)),
        fd_(std::move(fd)),
        peer_(to_text(peer_endpoint(fd_.get()))),
        handshake_(shared_->secret, shared_->admit),
        deadline_(deadline_in(kPatience)) {}

  int fd() const override { return fd_.get(); }
  bool wants_write() const override { return !out_.empty(); }
  Deadline due() const override { return deadline_; }
  void on_due() override { drop("it did not finish the handshake in time"); }
  void on_exception(const std::string& what) override { drop(what); }
  void drop(const std::string& why) {
    if (!fd_) return;
    shared_->report(peer_, why);
    leave();
  }

  void on_ready(bool readable, bool) override {
    if (!out_.flush(fd_.get())) return drop("the connection broke");
    std::array<char, 2048> buffer{};
    while (readable && handshake_.state() == Handshake::State::running) {
      const Moved got = read_some(fd_.get(), buffer.data(), buffer.size());
      if (got.closed) return drop(got.error.empty() ? "it closed the connection" : got.error);
      if (got.bytes == 0) break;
      if (std::string answer = handshake_.feed({buffer.data(), got.bytes}); !answer.empty())
        out_.push(std::move(answer));
      if (!out_.flush(fd_.get())) return drop("the connection broke");
    }
    if (handshake_.state() == Handshake::State::failed) return drop(handshake_.why());
    if (handshake_.state() != Handshake::State::accepted || !out_.empty()) return;
    Fd taken = std::move(fd_);
    leave();
    shared_->accepted(std::move(taken), handshake_.hello());
  }

 private:
  void leave() {
    fd_.reset();
    finished = true;
  }
  std::shared_ptr<Shared> shared_;
  Fd fd_;
  std::string peer_;
  ServerHandshake handshake_;
  WriteQueue out_;
  Deadline deadline_;
};

Acceptor::Acceptor(Reactor& reactor, Fd listener, std::string secret, std::string what,
                   ServerHandshake::Admit admit, Accepted accepted, std::shared_ptr<const Log> log)
    : reactor_(reactor), listener_(std::move(listener)), shared_(std::make_shared<Shared>()) {
  shared_->secret = std::move(secret);
  shared_->what = std::move(what);
  shared_->admit = std::move(admit);
  shared_->accepted = std::move(accepted);
  shared_->log = std::move(log);
}

void Acceptor::on_ready(bool, bool) {
  auto& waiting = shared_->waiting;
  while (Fd fd = accept_from(listener_.get())) {
    std::erase_if(waiting, [](const auto& one) {
      const auto stranger = one.lock();
      return !stranger || stranger->finished;
    });
    if (waiting.size() >= kMostStrangers) {
      if (const auto oldest = waiting.front().lock()) oldest->drop("too many connections wait");
      waiting.pop_front();
    }
    auto stranger = std::make_shared<Stranger>(shared_, std::move(fd));
    waiting.push_back(stranger);
    reactor_.add(std::move(stranger));
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) resume_ = deadline_in(0.1);
}

void Acceptor::on_exception(const std::string& what) {
  shared_->log->error(fmt::format("{}: its listener failed: {}", shared_->what, what));
}

}  // namespace bdcp::comm
