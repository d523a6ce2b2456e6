#include "comm/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

namespace bdcp::comm {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Endpoint endpoint_of(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof host, service, sizeof service,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  Endpoint endpoint{host, 0};
  std::from_chars(service, service + std::strlen(service), endpoint.port);
  // An IPv4 peer of a socket that serves both families.
  constexpr std::string_view kMapped = "::ffff:";
  if (endpoint.ip.rfind(kMapped, 0) == 0 && endpoint.ip.find('.') != std::string::npos)
    endpoint.ip.erase(0, kMapped.size());
  return endpoint;
}

bool to_address(const Endpoint& endpoint, Address& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  if (getaddrinfo(endpoint.ip.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found) != 0)
    return false;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return true;
}

[[noreturn]] void fail(const char* call, const std::string& what) {
  const int error = errno;
  throw Error(ErrorCode::io_error, fmt::format("{}: {}", what, std::strerror(error))).with_call(call);
}

void set_option(int fd, int level, int name, int value) {
  // Tuning only: a socket without it works too.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

Fd try_listen(const Endpoint& endpoint, const char** call) {
  Address address;
  *call = "getaddrinfo";
  errno = EADDRNOTAVAIL;
  if (!to_address(endpoint, address)) return {};
  *call = "socket";
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return {};
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6)
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, endpoint.ip != "::");
  *call = "bind";
  if (bind(fd.get(), address.raw(), address.length) != 0) return {};
  *call = "listen";
  if (listen(fd.get(), SOMAXCONN) != 0) return {};
  return fd;
}

struct Interface {
  std::string name, ip;
};

std::vector<Interface> interfaces() {
  std::vector<Interface> list;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return list;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP)) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const Endpoint endpoint = endpoint_of(one->ifa_addr, length);
    // A link-local address means nothing on another host without its interface.
    if (!endpoint.ip.empty() && endpoint.ip.find('%') == std::string::npos)
      list.push_back({one->ifa_name, endpoint.ip});
  }
  freeifaddrs(all);
  return list;
}

}  // namespace

void FdTraits::destroy(int fd) noexcept { (void)close(fd); }

std::string to_text(const Endpoint& endpoint) {
  return endpoint.ip.find(':') == std::string::npos ? fmt::format("{}:{}", endpoint.ip, endpoint.port)
                                                    : fmt::format("[{}]:{}", endpoint.ip, endpoint.port);
}

bool is_loopback(std::string_view ip) { return ip == "::1" || ip == "localhost" || ip.rfind("127.", 0) == 0; }

Endpoint parse_host(const std::string& text) {
  std::string host = text, port;
  if (!text.empty() && text[0] == '[') {
    const std::size_t end = text.find(']');
    if (end != std::string::npos) {
      host = text.substr(1, end - 1);
      if (end + 1 < text.size()) port = text.substr(end + 1);
    }
  } else if (const std::size_t colon = text.find(':'); colon != std::string::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    port = text.substr(colon);
  }
  Endpoint endpoint{host, 0};
  bool ok = !host.empty();
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), endpoint.port);
    ok = ok && port[0] == ':' && error == std::errc() && end == port.data() + port.size() && endpoint.port != 0;
  }
  if (!ok)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" is no address; allowed are host, host:port and [IPv6]:port", text.substr(0, 80)));
  return endpoint;
}

std::vector<Endpoint> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0)
    throw Error(ErrorCode::io_error, fmt::format("host \"{}\": {}", host, gai_strerror(error)))
        .with_call("getaddrinfo");
  std::vector<Endpoint> endpoints;
  for (const addrinfo* one = found; one; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Endpoint endpoint = endpoint_of(one->ai_addr, one->ai_addrlen);
    endpoint.port = port;
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end())
      endpoints.push_back(endpoint);
  }
  freeaddrinfo(found);
  return endpoints;
}

std::string interface_address(const std::string& name_or_ip) {
  std::string there;
  const std::vector<Interface> list = interfaces();
  for (const Interface& one : list) {
    if (one.name == name_or_ip || one.ip == name_or_ip) return one.ip;
    there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", one.name, one.ip);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("host interface \"{}\" is not one of this host's: {}", name_or_ip, there));
}

std::vector<std::string> local_addresses() {
  std::vector<std::string> list;
  for (const Interface& one : interfaces()) list.push_back(one.ip);
  std::stable_partition(list.begin(), list.end(), [](const std::string& ip) { return !is_loopback(ip); });
  return list;
}

Fd listen_on(const std::string& ip, std::uint16_t port) {
  const char* call = "";
  Fd fd = try_listen({ip.empty() ? "::" : ip, port}, &call);
  // A host without IPv6.
  if (!fd && ip.empty() && errno != EADDRINUSE) fd = try_listen({"0.0.0.0", port}, &call);
  if (!fd) fail(call, fmt::format("cannot listen on {}", to_text({ip.empty() ? "*" : ip, port})));
  return fd;
}

Endpoint local_endpoint(int fd) {
  Address address;
  address.length = sizeof address.storage;
  return getsockname(fd, address.raw(), &address.length) == 0 ? endpoint_of(address.raw(), address.length)
                                                              : Endpoint{};
}

Endpoint peer_endpoint(int fd) {
  Address address;
  address.length = sizeof address.storage;
  return getpeername(fd, address.raw(), &address.length) == 0 ? endpoint_of(address.raw(), address.length)
                                                              : Endpoint{};
}

Fd accept_from(int listener) {
  int fd = -1;
  do {
    fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (fd >= 0) set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  return Fd(fd);
}

Ready wait_until_ready(int fd, short events, Deadline deadline, int interrupt) {
  pollfd polled[2] = {{interrupt, POLLIN, 0}, {fd, events, 0}};
  for (;;) {
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int count = poll(polled, 2, static_cast<int>(std::clamp<long long>(ms, 0, 1000000)));
    if (count > 0 && polled[0].revents) return Ready::interrupted;
    if (count > 0) return Ready::yes;
    if (count == 0 && left.count() <= 0) return Ready::timeout;
    if (count < 0 && errno != EINTR) fail("poll", "waiting for a socket");
  }
}

Fd connect_to(const Endpoint& endpoint, Deadline deadline, int interrupt, std::string& why) {
  Address address;
  if (!to_address(endpoint, address)) {
    why = "it is no numeric address";
    return {};
  }
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    why = std::strerror(errno);
    return {};
  }
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  int error = connect(fd.get(), address.raw(), address.length) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    const Ready ready = wait_until_ready(fd.get(), POLLOUT, deadline, interrupt);
    if (ready != Ready::yes) {
      why = ready == Ready::timeout ? "no answer in time" : "interrupted";
      return {};
    }
    socklen_t length = sizeof error;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  if (error == 0 && local_endpoint(fd.get()) == endpoint) {
    // A port of the ephemeral range without a listener may connect to itself.
    error = ECONNREFUSED;
  }
  if (error != 0) {
    why = std::strerror(error);
    return {};
  }
  return fd;
}

Moved read_some(int fd, void* data, std::size_t bytes) {
  for (;;) {
    const ssize_t got = recv(fd, data, bytes, 0);
    if (got > 0) return {static_cast<std::size_t>(got), false, {}};
    if (got == 0) return {0, true, {}};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno != EINTR) return {0, true, std::strerror(errno)};
  }
}

Moved write_some(int fd, const void* data, std::size_t bytes) {
  for (;;) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<std::size_t>(sent), false, {}};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    if (errno != EINTR) return {0, true, std::strerror(errno)};
  }
}

}  // namespace bdcp::comm
