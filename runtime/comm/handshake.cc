#include "comm/handshake.h"

#include <fmt/format.h>
#include <poll.h>

#include <utility>

#include "comm/bytes.h"
#include "comm/hmac.h"
#include "comm/text.h"

namespace bdcp::comm {
namespace {

enum Type : std::uint8_t { kHello = 1, kChallenge, kProof, kWelcome, kRefused };
constexpr std::size_t kNonce = 32, kProofBytes = 32, kMaxText = 512;

std::string message(Type type) { return std::string(1, static_cast<char>(type)); }

std::string server_proof(const std::string& secret, const std::string& transcript) {
  return hmac_sha256(secret, "bdcp server\n" + transcript);
}
std::string client_proof(const std::string& secret, const std::string& transcript) {
  return hmac_sha256(secret, "bdcp client\n" + transcript);
}

}  // namespace

std::string Handshake::fail(std::string why) {
  state_ = State::failed;
  why_ = std::move(why);
  return {};
}

ServerHandshake::ServerHandshake(std::string secret, Admit admit)
    : Handshake(std::move(secret)), admit_(std::move(admit)) {}

std::string ServerHandshake::feed(std::string_view bytes) {
  reader_.append(bytes);
  std::string body, answer;
  while (state_ == State::running && reader_.next(body))
    answer += transcript_.empty() ? on_hello(std::move(body)) : on_proof(body);
  if (!reader_.error().empty()) return fail(reader_.error());
  if (state_ == State::accepted && !reader_.empty()) return fail("it talks before it is welcome");
  return answer;
}

std::string ServerHandshake::on_hello(std::string body) {
  Reader reader(body);
  const auto type = reader.number<std::uint8_t>();
  const auto purpose = reader.number<std::uint8_t>();
  hello_.scope = reader.text();
  hello_.group = reader.text();
  hello_.restart = reader.number<std::uint32_t>();
  hello_.rank = reader.number<std::uint32_t>();
  reader.take(kNonce);
  if (type != kHello || purpose < 1 || purpose > 3 || !reader.done() || hello_.scope.size() > kMaxText ||
      hello_.group.size() > kMaxText)
    return fail("its first message is malformed");
  hello_.purpose = static_cast<Purpose>(purpose);
  const std::string nonce = random_bytes(kNonce);
  transcript_ = std::move(body) + nonce;
  return to_frame(message(kChallenge) + nonce + server_proof(secret_, transcript_));
}

std::string ServerHandshake::on_proof(const std::string& body) {
  if (body.size() != 1 + kProofBytes || body[0] != kProof) return fail("its second message is malformed");
  if (!same_secret(std::string_view(body).substr(1), client_proof(secret_, transcript_)))
    return fail("it does not hold this job's secret");
  const std::string refusal = admit_(hello_);
  if (refusal.empty()) {
    state_ = State::accepted;
    return to_frame(message(kWelcome));
  }
  fail(refusal);
  refused_ = true;
  return to_frame(message(kRefused) + refusal.substr(0, kMaxText));
}

ClientHandshake::ClientHandshake(std::string secret, const Hello& hello) : Handshake(std::move(secret)) {
  hello_body_ = message(kHello);
  put(hello_body_, static_cast<std::uint8_t>(hello.purpose));
  put_text(hello_body_, hello.scope);
  put_text(hello_body_, hello.group);
  put(hello_body_, hello.restart);
  put(hello_body_, hello.rank);
  hello_body_ += random_bytes(kNonce);
  opening_ = to_frame(hello_body_);
}

std::string ClientHandshake::feed(std::string_view bytes) {
  reader_.append(bytes);
  std::string body;
  if (!reader_.next(body)) return reader_.error().empty() ? std::string() : fail(reader_.error());
  if (!proved_) {
    if (body.size() != 1 + kNonce + kProofBytes || body[0] != kChallenge)
      return fail("its answer is malformed");
    const std::string transcript = hello_body_ + body.substr(1, kNonce);
    if (!same_secret(std::string_view(body).substr(1 + kNonce), server_proof(secret_, transcript)))
      return fail("it does not hold this job's secret");
    proved_ = true;
    return to_frame(message(kProof) + client_proof(secret_, transcript));
  }
  if (body == message(kWelcome)) {
    state_ = State::accepted;
    return {};
  }
  if (body.empty() || body[0] != kRefused) return fail("its answer is malformed");
  refused_ = true;
  return fail(body.substr(1));
}

bool run_handshake(int fd, ClientHandshake& handshake, Deadline deadline, int interrupt, std::string& why) {
  std::string out = handshake.opening();
  while (handshake.state() == Handshake::State::running) {
    const Ready ready = wait_until_ready(fd, out.empty() ? POLLIN : POLLOUT, deadline, interrupt);
    if (ready != Ready::yes) {
      why = ready == Ready::timeout ? "it does not answer" : "interrupted";
      return false;
    }
    if (!out.empty()) {
      const Moved sent = write_some(fd, out.data(), out.size());
      if (sent.closed) {
        why = sent.error;
        return false;
      }
      out.erase(0, sent.bytes);
      continue;
    }
    // Byte by byte (they are few): what follows the welcome belongs to whoever takes the socket over.
    char byte = 0;
    const Moved got = read_some(fd, &byte, 1);
    if (got.closed) {
      why = got.error.empty() ? "it closed the connection" : got.error;
      return false;
    }
    out = handshake.feed({&byte, got.bytes});
  }
  if (handshake.state() == Handshake::State::accepted) return true;
  why = handshake.why();
  return false;
}

}  // namespace bdcp::comm
