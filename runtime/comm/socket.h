// TCP sockets between ranks: non-blocking, closed on exec, never a signal; IPv4 and IPv6.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle.h"
#include "comm/group.h"

namespace bdcp::comm {

struct FdTraits {
  using type = int;
  static constexpr int null = -1;
  void destroy(int fd) noexcept;
};
using Fd = Handle<FdTraits>;

/// A numeric address.
struct Endpoint {
  std::string ip;
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
/// "10.0.0.1:29500", "[::1]:29500".
std::string to_text(const Endpoint& endpoint);
bool is_loopback(std::string_view ip);
/// "host", "host:port", "[v6]:port"; the port is 0 where none is given. Throws Error(invalid_argument).
Endpoint parse_host(const std::string& text);

/// All addresses of a host name. Throws Error(io_error).
std::vector<Endpoint> resolve(const std::string& host, std::uint16_t port);
/// The address of a network interface ("eth0"), or the address itself. Throws Error(invalid_argument) naming
/// the interfaces there are.
std::string interface_address(const std::string& name_or_ip);
/// Addresses of this host's interfaces that are up, loopback last.
std::vector<std::string> local_addresses();

/// `ip` empty: every address, of both families where the host has them. Throws Error(io_error, call "bind").
Fd listen_on(const std::string& ip, std::uint16_t port);
Endpoint local_endpoint(int fd);
Endpoint peer_endpoint(int fd);
/// Null if nobody waits.
Fd accept_from(int listener);

/// `interrupt`: a descriptor that becomes readable to end the wait; -1: none.
enum class Ready { yes, timeout, interrupted };
Ready wait_until_ready(int fd, short events, Deadline deadline, int interrupt);
/// Null on failure or interruption, with the reason in `why`.
Fd connect_to(const Endpoint& endpoint, Deadline deadline, int interrupt, std::string& why);

/// What one non-blocking read or write did.
struct Moved {
  std::size_t bytes = 0;
  bool closed = false;  ///< end of stream, or the connection is broken (error says how; empty: orderly end)
  std::string error;
};
Moved read_some(int fd, void* data, std::size_t bytes);
Moved write_some(int fd, const void* data, std::size_t bytes);

}  // namespace bdcp::comm
