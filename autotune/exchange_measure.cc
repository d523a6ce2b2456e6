#include "autotune/exchange_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "autotune/median.h"
#include "autotune/place.h"
#include "base/check.h"
#include "comm/group.h"

namespace bdcp::autotune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr comm::TransferBounds kBounds{.start_s = 600, .run_s = 120};
constexpr int kWarmup = 3, kSingles = 11;

/// One rank's side of one kind of transfer.
struct Side {
  comm::Group& group;
  const Place& place;
  device::OwnedStream owned;
  comm::Lane lane;
  Block own, all;
  bool gathers = false;
  std::vector<comm::TransferOp> sends, recvs;
  comm::GatherOp gather;

  Side(comm::Group& members, const Place& where, const std::string& path, std::int64_t bytes)
      : group(members), place(where), gathers(path == "allgather") {
    const int world = group.size(), rank = group.rank();
    if (!place.memory.host()) {
      owned = place.memory.device().create_stream(true);
      lane = {Stream::cuda(owned.get(), place.device), &place.memory.device()};
    }
    own = place.memory.allocate(static_cast<std::size_t>(bytes));
    all = place.memory.allocate(static_cast<std::size_t>(bytes * world));
    place.memory.fill(own, 1);
    const auto rows = [&](const Block& block, std::int64_t count, std::int64_t from) {
      auto* data = static_cast<std::byte*>(block.data()) + from * bytes;
      return comm::StridedRows{data, count, 1, bytes, bytes, bytes};
    };
    gather = {rows(own, 1, 0), rows(all, world, 0)};
    const bool halo = path == "halo";
    for (int peer = 0; peer < world && !gathers; ++peer) {
      if (peer == rank) continue;
      if (!halo || peer == rank + 1) sends.push_back({peer, rows(own, 1, 0)});
      if (!halo || peer == rank - 1) recvs.push_back({peer, rows(all, 1, peer)});
    }
  }
  void transfer() {
    if (gathers) {
      group.all_gather({&gather, 1}, lane, kBounds);
    } else {
      group.exchange(sends, recvs, lane, kBounds);
    }
  }
  void finish() {
    if (lane.device) lane.device->synchronize(lane.stream.handle);
    group.check();
  }
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double many(Side& side, int iters) {
  side.transfer();  // the ranks meet
  if (!side.lane.device) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < iters; ++i) side.transfer();
    return microseconds_since(start) / iters;
  }
  device::Device& device = *side.lane.device;
  const device::OwnedEvent start = device.create_event(true), end = device.create_event(true);
  device.record(start.get(), side.lane.stream.handle);
  for (int i = 0; i < iters; ++i) side.transfer();
  device.record(end.get(), side.lane.stream.handle);
  side.finish();
  return device.elapsed_ms(start.get(), end.get()) * 1e3 / iters;
}

}  // namespace

void measure_exchange(const ExchangeOptions& options, const Team& team,
                      const std::function<void(const ExchangeLine&)>& report) {
  require(team.world() > 1, ErrorCode::invalid_argument, "world is 1; an exchange needs 2 ranks or more");
  std::string name;
  const Place place = open_place(options.device, false, &name);
  const std::shared_ptr<device::Device> device =
      place.memory.host() ? nullptr : place.memory.device().shared_from_this();
  team.run([&](int local, const Team::Barrier&) {
    comm::Group& group = *team.comm(local).group();
    const std::string why = group.why_not(device.get());
    require(why.empty(), ErrorCode::unsupported, why.c_str());
    group.prepare(device, comm::deadline_in(kBounds.run_s));
  });
  for (const std::string& path : options.paths)
    for (const std::int64_t bytes : options.sizes) {
      ExchangeLine line{.path = path,
                        .transport = team.comm(0).group()->transport(device.get()),
                        .device = name,
                        .bytes = bytes,
                        .received = path == "halo" ? bytes : bytes * (team.world() - 1),
                        .world = team.world(),
                        .iters = options.iters};
      std::mutex mutex;
      std::vector<double> each{0, 0};
      team.run([&](int local, const Team::Barrier& barrier) {
        Side side(*team.comm(local).group(), place, path, bytes);
        for (int i = 0; i < kWarmup; ++i) side.transfer();
        side.finish();
        barrier();
        const double us = many(side, options.iters);
        std::vector<double> singles;
        for (int i = 0; i < kSingles; ++i) {
          barrier();
          const Clock::time_point start = Clock::now();
          side.transfer();
          side.finish();
          singles.push_back(microseconds_since(start));
        }
        std::lock_guard lock(mutex);
        each[0] = std::max(each[0], us);
        each[1] = std::max(each[1], median(singles));
      });
      team.take_largest(each);
      line.us = each[0];
      line.latency_us = each[1];
      report(line);
    }
}

std::vector<std::int64_t> default_sizes() {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = 64 << 10; bytes <= 256 << 20; bytes *= 4) sizes.push_back(bytes);
  return sizes;
}

std::string to_json_line(const ExchangeLine& line) {
  nlohmann::ordered_json json;
  json["impl"] = "bdcp";
  json["what"] = "exchange";
  json["path"] = line.path;
  json["transport"] = line.transport;
  json["device"] = line.device;
  json["world"] = line.world;
  json["bytes"] = line.bytes;
  json["received"] = line.received;
  json["us"] = std::round(line.us * 100) / 100;
  json["gbps"] = std::round(line.gbps() * 100) / 100;
  json["latency_us"] = std::round(line.latency_us * 10) / 10;
  json["iters"] = line.iters;
  return json.dump();
}

std::string to_text(const ExchangeLine& line) {
  return fmt::format("{:<10} {:>11} bytes  world {}  {:>9.1f} us  {:>7.1f} GB/s  alone {:>9.1f} us  {}",
                     line.path, line.bytes, line.world, line.us, line.gbps(), line.latency_us, line.transport);
}

}  // namespace bdcp::autotune
