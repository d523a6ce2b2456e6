// Acceptor: a listening socket, and the strangers at it until they have shown that they belong.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/log.h"
#include "comm/handshake.h"
#include "comm/reactor.h"

namespace bdcp::comm {

/// Bounds and log lines for whatever connects: half-open connections end after kPatience, at most
/// kMostStrangers wait, and a flood of them is summarised.
class Acceptor final : public Reactor::Watch {
 public:
  using Accepted = std::function<void(Fd, const Hello&)>;
  static constexpr double kPatience = 10;
  static constexpr std::size_t kMostStrangers = 64;

  /// `what`: for log lines ("group 'cp', rank 2"). Both callbacks run on the reactor's thread.
  Acceptor(Reactor& reactor, Fd listener, std::string secret, std::string what, ServerHandshake::Admit admit,
           Accepted accepted, std::shared_ptr<const Log> log);
  int fd() const override { return resume_ == Deadline::max() ? listener_.get() : -1; }
  Deadline due() const override { return resume_; }
  void on_due() override { resume_ = Deadline::max(); }
  void on_ready(bool readable, bool writable) override;
  void on_exception(const std::string& what) override;

 private:
  class Stranger;
  struct Shared;
  Reactor& reactor_;
  Fd listener_;
  std::shared_ptr<Shared> shared_;
  Deadline resume_ = Deadline::max();  ///< while the process has no descriptor left for a peer
};

}  // namespace bdcp::comm
