#include "comm/rendezvous_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "comm/text.h"

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kOneAttempt = 2;  // a candidate that is no rendezvous may never answer

class Client {
 public:
  Client(const Joining& joining, Deadline deadline)
      : joining_(joining), deadline_(deadline), start_(Clock::now()) {}

  /// Nothing: try the next; why() says what was wrong.
  std::optional<Joined> attempt(const Endpoint& endpoint) {
    const Deadline soon = std::min(deadline_, deadline_in(kOneAttempt));
    std::string why;
    // What a rendezvous that knows the secret said is worth more than a refused connection elsewhere, and
    // either more than an attempt that the deadline cut short.
    const auto miss = [&](bool told) {
      if (told || (!told_ && (why_.empty() || Clock::now() < deadline_)))
        why_ = fmt::format("{}: {}", to_text(endpoint), why);
      told_ = told_ || told;
      return std::nullopt;
    };
    Fd fd = connect_to(endpoint, soon, -1, why);
    if (!fd) return miss(false);
    ClientHandshake handshake(joining_.job.secret,
                              {Purpose::join, joining_.job.run_id, joining_.group, joining_.job.restart,
                               static_cast<std::uint32_t>(joining_.rank)});
    if (!run_handshake(fd.get(), handshake, soon, -1, why)) return miss(handshake.refused());
    Joined joined;
    Endpoint own{joining_.interface, 0};
    if (own.ip.empty()) own = local_endpoint(fd.get());
    // A host name may stand for a loopback address on its own host: then peers elsewhere come in by another.
    joined.listener = listen_on(is_loopback(own.ip) && !joining_.loopback_only ? std::string() : own.ip, 0);
    own.port = local_endpoint(joined.listener.get()).port;
    const JoinRequest request{joining_.group, joining_.ranks, joining_.rank, joining_.host, own};
    if (!send(fd.get(), to_frame(encode(request)), why) || !await(fd.get(), joined.membership, why))
      return miss(true);
    return joined;
  }

  [[noreturn]] void give_up() const {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!missing_.empty()) throw did_not_come(joining_.group, missing_, Call::creation, seconds);
    throw Error(ErrorCode::timeout,
                fmt::format("group '{}': rank {} found no rendezvous within {:.3g} s ({})", joining_.group,
                            joining_.rank, seconds, why_.empty() ? "it has no address" : why_),
                ErrorScope::communicator);
  }
  void set_why(std::string why) { why_ = std::move(why); }

 private:
  bool send(int fd, std::string bytes, std::string& why) const {
    WriteQueue queue;
    queue.push(std::move(bytes));
    for (;;) {
      if (!queue.flush(fd)) {
        why = "the connection broke";
        return false;
      }
      if (queue.empty()) return true;
      if (wait_until_ready(fd, POLLOUT, deadline_, -1) != Ready::yes) give_up();
    }
  }

  bool await(int fd, Membership& membership, std::string& why) {
    FrameReader reader(kMaxTable);
    std::array<char, 1 << 14> buffer{};
    for (;;) {
      std::string body;
      while (reader.next(body)) {
        const std::optional<JoinAnswer> answer = decode_answer(body);
        if (!answer) {
          why = "it sent a malformed answer";
          return false;
        }
        if (answer->type == JoinAnswer::Type::error) throw Error(ErrorCode::invalid_argument, answer->error);
        missing_ = answer->missing;
        if (answer->type != JoinAnswer::Type::table) continue;
        if (answer->hosts.size() != joining_.ranks.size()) {
          why = fmt::format("its table has {} ranks", answer->hosts.size());
          return false;
        }
        membership = {joining_.rank,       static_cast<int>(joining_.ranks.size()),
                      joining_.group,      answer->session,
                      joining_.job.secret, answer->hosts,
                      answer->endpoints};
        return true;
      }
      if (!reader.error().empty()) {
        why = reader.error();
        return false;
      }
      if (wait_until_ready(fd, POLLIN, deadline_, -1) != Ready::yes) give_up();
      const Moved got = read_some(fd, buffer.data(), buffer.size());
      if (got.closed) {
        why = "it closed the connection";
        return false;
      }
      reader.append({buffer.data(), got.bytes});
    }
  }

  const Joining& joining_;
  const Deadline deadline_, start_;
  std::vector<int> missing_;
  bool told_ = false;
  std::string why_;
};

}  // namespace

Joined join_group(const Joining& joining, const std::function<std::vector<Endpoint>()>& where,
                  double timeout_s) {
  const Deadline deadline = deadline_in(timeout_s);
  Client client(joining, deadline);
  for (auto pause = std::chrono::milliseconds(10);;
       pause = std::min(pause * 2, std::chrono::milliseconds(250))) {
    std::vector<Endpoint> candidates;
    try {
      candidates = where();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io_error) throw;
      client.set_why(error.message());  // name services may be late too
    }
    for (const Endpoint& endpoint : candidates) {
      if (auto joined = client.attempt(endpoint)) return std::move(*joined);
      if (Clock::now() >= deadline) break;
    }
    if (Clock::now() >= deadline) client.give_up();
    (void)wait_until_ready(-1, 0, std::min<Deadline>(deadline, Clock::now() + pause), -1);
  }
}

}  // namespace bdcp::comm
