// Communicators over processes: from what a launcher says, or from a broadcast.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "bdcp/communicator.h"
#include "comm/bytes.h"
#include "comm/hmac.h"
#include "comm/host_identity.h"
#include "comm/launcher_env.h"
#include "comm/nccl_plane.h"
#include "comm/process_group.h"
#include "comm/rendezvous_client.h"
#include "comm/socket_plane.h"

namespace bdcp {
namespace {

using namespace comm;

constexpr int kDerivedPorts = 16;
constexpr int kFirstPort = 20000, kPorts = 12000;  // below the ephemeral ranges

/// Options with the environment worked in.
struct Settings {
  ProcessOptions options;
  std::string interface_ip;
  std::shared_ptr<const Log> log;
  Env env;
};

Settings settle(const ProcessOptions& given, const Env& env) {
  Settings settings{given, {}, std::make_shared<Log>(Log::Level::warn, given.log_sink), env};
  ProcessOptions& options = settings.options;
  const auto fill = [&](std::string& field, const std::optional<std::string>& variable) {
    if (field.empty() && variable && !given.ignore_env) field = *variable;
  };
  fill(options.secret, env.secret);
  fill(options.host_interface, env.host_interface);
  if (options.host.empty()) options.host = host_identity();
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, what); };
  if (options.name.empty() || options.name.size() > 200)
    refuse(fmt::format("options.name has {} bytes; allowed are 1 to 200", options.name.size()));
  if (!(options.timeout_s > 0))
    refuse(fmt::format("options.timeout_s is {}; allowed are > 0", options.timeout_s));
  if (!(options.heartbeat_s >= 0.01 && options.heartbeat_s <= 3600))
    refuse(fmt::format("options.heartbeat_s is {}; allowed are 0.01 to 3600", options.heartbeat_s));
  if (!options.host_interface.empty()) settings.interface_ip = interface_address(options.host_interface);
  return settings;
}

Communicator assemble(std::unique_ptr<Reactor>&& reactor, const Settings& settings, const Joining& joining,
                      const std::function<std::vector<Endpoint>()>& where) {
  const Deadline deadline = deadline_in(settings.options.timeout_s);
  Joined joined = join_group(joining, where, settings.options.timeout_s);
  auto channel = std::make_unique<ControlChannel>(
      std::move(reactor), std::move(joined.listener), std::move(joined.membership),
      ChannelOptions{.heartbeat_s = settings.options.heartbeat_s, .log = settings.log});
  channel->assemble(deadline);
  return Communicator(make_process_group(std::move(channel), {make_socket_plane, [&](ControlChannel& made) {
                                                                return make_nccl_plane(made, settings.env);
                                                              }}));
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> members_of(const ProcessOptions& options, const Launch& launch) {
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) ranks = all_ranks(launch.world);
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= launch.world || !seen.insert(rank).second)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("options.ranks holds {}{}; allowed are the launcher's ranks 0 to {}, each once",
                              rank, seen.count(rank) ? " twice" : "", launch.world - 1));
  }
  return ranks;
}

/// A port of bdcp's own that all processes of this start of the job work out alike; several, as others may sit
/// on some. Groups share it: they are told apart where they meet.
std::vector<std::uint16_t> ports_of(const Launch& launch) {
  const std::string digest =
      sha256(fmt::format("bdcp rendezvous\n{}\n{}\n{}", launch.run_id, launch.restart, launch.master_port));
  const int start = static_cast<int>(Reader(digest).number<std::uint32_t>() % kPorts);
  std::vector<std::uint16_t> ports;
  ports.reserve(kDerivedPorts);
  for (int i = 0; i < kDerivedPorts; ++i)
    ports.push_back(static_cast<std::uint16_t>(kFirstPort + (start + i) % kPorts));
  return ports;
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

}  // namespace

Communicator Communicator::from_launcher(const ProcessOptions& given) {
  const Env env = Env::from_process();
  const Launch launch = read_launch(env.launcher);
  Settings settings = settle(given, env);
  ProcessOptions& options = settings.options;
  const std::vector<int> ranks = members_of(options, launch);
  const auto self = std::find(ranks.begin(), ranks.end(), launch.rank);
  if (self == ranks.end())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("options.ranks of group '{}' does not hold this process's launcher rank {}",
                            options.name, launch.rank));
  if (ranks.size() == 1) return Communicator();
  if (options.secret.empty())
    throw Error(ErrorCode::invalid_argument,
                "the job has no secret: set BDCP_SECRET to the same random text for all its processes (or "
                "options.secret), or create the communicator from a broadcast");

  const bool of_the_group = !options.rendezvous.empty();
  std::string text = options.rendezvous;
  if (text.empty() && env.rendezvous && !options.ignore_env) text = *env.rendezvous;
  if (text.empty()) text = launch.master_host;
  if (text.empty())
    throw Error(
        ErrorCode::invalid_argument,
        "nothing says where the processes meet: set MASTER_ADDR or BDCP_RENDEZVOUS to the host of rank 0, or "
        "options.rendezvous");
  const Endpoint host = parse_host(text);
  const std::vector<std::uint16_t> ports = host.port ? std::vector<std::uint16_t>{host.port} : ports_of(launch);
  const bool serves = of_the_group ? self == ranks.begin() : launch.rank == 0;

  const JobKey job{launch.run_id.substr(0, 200), static_cast<std::uint32_t>(launch.restart), options.secret};
  const Joining joining{job,
                        options.name,
                        ranks,
                        static_cast<int>(self - ranks.begin()),
                        options.host,
                        settings.interface_ip,
                        is_loopback(host.ip)};
  auto reactor = std::make_unique<Reactor>(settings.log);
  Reactor& thread = *reactor;  // stays where it is when its owner changes
  std::shared_ptr<RendezvousHub> hub;
  const auto serve = [&](const std::vector<Endpoint>& there) {
    std::string ip;
    if (is_loopback(host.ip) && !there.empty()) ip = there.front().ip;
    for (const Endpoint& endpoint : there)
      if (endpoint.ip == settings.interface_ip) ip = endpoint.ip;
    for (const std::uint16_t port : ports) {
      try {
        hub = RendezvousHub::start(thread, listen_on(ip, port), job, settings.log);
        return;
      } catch (const Error& error) {
        if (port == ports.back()) settings.log->warn(fmt::format("rendezvous: {}", error.message()));
      }
    }
  };
  const auto where = [&] {
    const std::vector<Endpoint> there = resolve(host.ip, 0);
    if (serves && !hub) serve(there);
    std::vector<Endpoint> candidates;
    for (const std::uint16_t port : ports)
      for (const Endpoint& endpoint : there) candidates.push_back({endpoint.ip, port});
    return candidates;
  };
  return assemble(std::move(reactor), settings, joining, where);
}

Communicator Communicator::from_broadcast(int rank, int size, const Broadcast& broadcast,
                                          const ProcessOptions& given) {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank is {} of {}; allowed are 0 to size - 1, with size at least 1", rank, size));
  if (size == 1) return Communicator();
  const Settings settings = settle(given, Env::from_process());
  auto reactor = std::make_unique<Reactor>(settings.log);
  JobKey job;
  std::string told;  // run, secret, then addresses
  if (rank == 0) {
    job.run_id = hex(random_bytes(16));
    job.secret = hex(random_bytes(32));
    Fd listener = listen_on(settings.interface_ip, 0);
    const std::uint16_t port = local_endpoint(listener.get()).port;
    put_text(told, job.run_id);
    put_text(told, job.secret);
    for (const std::string& ip :
         settings.interface_ip.empty() ? local_addresses() : std::vector<std::string>{settings.interface_ip})
      put_text(told, to_text({ip, port}));
    RendezvousHub::start(*reactor, std::move(listener), job, settings.log);
  }
  told = broadcast(told);
  Reader reader(told);
  job.run_id = reader.text();
  job.secret = reader.text();
  std::vector<Endpoint> endpoints;
  while (reader.ok() && reader.left() > 0) {
    const std::string text(reader.text());
    if (reader.ok()) endpoints.push_back(parse_host(text));
  }
  if (!reader.ok() || endpoints.empty() || job.secret.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("broadcast returned {} bytes on rank {}, which are not what rank 0 gave",
                            told.size(), rank));
  const Joining joining{
      job, settings.options.name, all_ranks(size), rank, settings.options.host, settings.interface_ip, false};
  return assemble(std::move(reactor), settings, joining, [&] { return endpoints; });
}

}  // namespace bdcp
