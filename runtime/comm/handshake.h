// Who is at the other end: a challenge and response by the job's secret, both ways, before anything else is
// read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "comm/socket.h"
#include "comm/wire.h"

namespace bdcp::comm {

enum class Purpose : std::uint8_t { join = 1, control = 2, data = 3 };

/// What the connecting side claims. `scope`: the run (join) or the session of one communicator (control, data).
struct Hello {
  Purpose purpose = Purpose::join;
  std::string scope, group;
  std::uint32_t restart = 0, rank = 0;
};

/// Both sides share: bytes in, bytes out, no socket. A replayed exchange fails on the fresh nonces.
class Handshake {
 public:
  enum class State { running, accepted, failed };
  State state() const { return state_; }
  /// After failed: why; `refused` says that the other side holds the secret and said no.
  const std::string& why() const { return why_; }
  bool refused() const { return refused_; }
  /// Bytes that came; returns bytes to send.
  virtual std::string feed(std::string_view bytes) = 0;
  virtual ~Handshake() = default;

 protected:
  explicit Handshake(std::string secret) : secret_(std::move(secret)), reader_(kMaxBody) {}
  std::string fail(std::string why);
  static constexpr std::size_t kMaxBody = 4096;
  std::string secret_, why_;
  FrameReader reader_;
  State state_ = State::running;
  bool refused_ = false;
};

class ServerHandshake final : public Handshake {
 public:
  /// `admit` is asked once the peer has proved that it holds the secret: empty, or why it is refused.
  using Admit = std::function<std::string(const Hello&)>;
  ServerHandshake(std::string secret, Admit admit);
  std::string feed(std::string_view bytes) override;
  const Hello& hello() const { return hello_; }

 private:
  std::string on_hello(std::string body);
  std::string on_proof(const std::string& body);
  Admit admit_;
  Hello hello_;
  std::string transcript_, server_proof_;
};

class ClientHandshake final : public Handshake {
 public:
  ClientHandshake(std::string secret, const Hello& hello);
  /// What to send first.
  const std::string& opening() const { return opening_; }
  std::string feed(std::string_view bytes) override;

 private:
  std::string opening_, hello_body_;
  bool proved_ = false;
};

/// Runs the client's side on a connected socket. False: see handshake.why().
bool run_handshake(int fd, ClientHandshake& handshake, Deadline deadline, int interrupt, std::string& why);

}  // namespace bdcp::comm
