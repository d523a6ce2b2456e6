// How a session is timed: CUDA events behind a delay on a GPU, wall clock on the host.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

#include "autotune/median.h"
#include "bench/session.h"

namespace bdcp::bench {
namespace {

using autotune::median;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

constexpr double kDelayMs = 2.0;
constexpr double kHostRoundsMs = 1500, kMostHostMs = 3000;  // wanted, and at most, of all rounds
constexpr double kMostRounds = 5, kFewestLayers = 4, kMostLayers = 32;
constexpr double kMostWarmupMs = 1500;

/// How many calls fit.
double fit(double budget_ms, double ms) { return budget_ms / std::max(ms, 1e-6); }

}  // namespace

HostCalls host_calls(double gpu_ms) {
  const int layers = static_cast<int>(std::clamp(fit(kMostHostMs, gpu_ms), kFewestLayers, kMostLayers)) / 2 * 2;
  return {static_cast<int>(std::clamp(fit(kHostRoundsMs, layers * gpu_ms), 1.0, kMostRounds)), layers};
}

int further_warmup(int wanted, double ms) {
  return static_cast<int>(std::min<double>(std::max(wanted - 2, 0), fit(kMostWarmupMs, ms)));
}

CallTime call_time(double all_us, const ExposedExchange& before, const ExposedExchange& after,
                   Direction direction) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  if (after.untimed_waits != before.untimed_waits) return {kUnknown, kUnknown};
  const double waited = direction == Direction::forward ? after.forward_us - before.forward_us
                                                        : after.backward_us - before.backward_us;
  return {all_us, all_us - waited};
}

std::optional<double> mean_exposed(const std::vector<CallTime>& slowest) {
  double sum = 0;
  int counted = 0;
  for (const CallTime& call : slowest) {
    if (std::isinf(call.all) || std::isinf(call.working)) continue;
    sum += call.all - call.working;
    ++counted;
  }
  return counted > 0 ? std::optional(std::max(sum / counted, 0.0)) : std::nullopt;
}

/// Work that keeps a stream busy while the host enqueues what is timed. A copy of scattered 8-byte pieces of a
/// small buffer: slow for its size, so it neither floods the command queue nor leaves much dirty data in the L2
/// cache.
struct Session::Delay {
  static constexpr std::size_t kPitch = 32, kWidth = 8, kRows = 128 * 1024;
  device::Device& device;
  void* stream;
  Block buffer;
  device::OwnedEvent start, end;
  int copies = 1;

  Delay(const Memory& memory, void* stream_handle)
      : device(memory.device()),
        stream(stream_handle),
        buffer(memory.allocate(2 * kPitch * kRows)),
        start(device.create_event(true)),
        end(device.create_event(true)) {
    memory.fill(buffer, 0);
    constexpr int kProbe = 8;
    copies = kProbe;
    enqueue();
    device.record(start.get(), stream);
    enqueue();
    device.record(end.get(), stream);
    device.synchronize(stream);
    const double one = std::max(device.elapsed_ms(start.get(), end.get()) / kProbe, 1e-3);
    copies = std::clamp(static_cast<int>(kDelayMs / one) + 1, 1, 500);
  }
  void enqueue() const {
    char* data = static_cast<char*>(buffer.data());
    for (int i = 0; i < copies; ++i) {
      device.copy_2d_async(data + kPitch * kRows, kPitch, data, kPitch, kWidth, kRows, stream);
    }
  }
};

double Session::gpu_ms(const Rank& rank, Direction direction, const Delay& delay) const {
  device::Device& device = place_.memory.device();
  delay.enqueue();
  // Ranks on several devices start together only after they have met once.
  if (team_.world() > 1) call(rank, *rank.step, direction);
  device.record(delay.start.get(), rank.stream.handle);
  call(rank, *rank.step, direction);
  device.record(delay.end.get(), rank.stream.handle);
  finish(rank);
  return device.elapsed_ms(delay.start.get(), delay.end.get());
}

std::vector<double> Session::slowest(int iters,
                                     const std::function<double(int, const Team::Barrier&)>& sample) {
  std::vector<double> values(static_cast<std::size_t>(iters), std::numeric_limits<double>::lowest());
  std::mutex mutex;
  team_.run([&](int index, const Team::Barrier& barrier) {
    for (double& value : values) {
      barrier();
      const double one = sample(index, barrier);
      const std::lock_guard lock(mutex);
      value = std::max(value, one);
    }
  });
  team_.take_largest(values);
  return values;
}

Timing Session::time(Direction direction, int iters, int warmup) {
  const auto rank_of = [&](int index) -> const Rank& { return ranks_[static_cast<std::size_t>(index)]; };
  warm_up(direction, warmup);
  Timing timing;
  if (team_.world() > 1) timing.exposed_us = exposed_us(direction, iters);
  if (place_.memory.host()) {
    timing.ms = median(slowest(iters, [&](int index, const Team::Barrier&) {
      const Clock::time_point start = Clock::now();
      call(rank_of(index), *rank_of(index).step, direction);
      return microseconds_since(start) / 1e3;
    }));
    return timing;
  }
  std::vector<std::optional<Delay>> delays(ranks_.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) delays[i].emplace(place_.memory, ranks_[i].stream.handle);
  timing.ms = median(slowest(iters, [&](int index, const Team::Barrier&) {
    return gpu_ms(rank_of(index), direction, *delays[static_cast<std::size_t>(index)]);
  }));
  timing.host_us = host_us(direction, host_calls(timing.ms));  // every rank has the same ms, so the same calls
  return timing;
}

void Session::warm_up(Direction direction, int calls) {
  const auto take = [&](int count) {
    return slowest(1,
                   [&](int index, const Team::Barrier&) {
                     const Rank& rank = ranks_[static_cast<std::size_t>(index)];
                     const Clock::time_point start = Clock::now();
                     for (int i = 0; i < count; ++i) call(rank, *rank.step, direction);
                     finish(rank);
                     return microseconds_since(start) / 1e3;
                   })
        .front();
  };
  if (calls > 0) take(1);  // what is made once is no measure of a call
  if (calls > 1) take(further_warmup(calls, take(1)));
}

double Session::host_us(Direction direction, const HostCalls& calls) {
  // A model alternates steps (pipeline stages, two attention types), so a cache of the last step must not help.
  team_.run([&](int index, const Team::Barrier&) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    if (!rank.twin) rank.twin = begin(index);
  });
  return median(slowest(calls.rounds, [&](int index, const Team::Barrier&) {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    const Clock::time_point start = Clock::now();
    for (int layer = 0; layer < calls.layers; ++layer) {
      call(rank, layer % 2 == 0 ? *rank.step : *rank.twin, direction);
    }
    const double per_call = microseconds_since(start) / calls.layers;
    finish(rank);
    return per_call;
  }));
}

CallTime Session::timed_call(const Rank& rank, Direction direction, const Team::Barrier& barrier) const {
  const ExposedExchange before = rank.step->exposed_exchange();
  barrier();  // else a rank also waits for those that are busy with the call before
  if (place_.memory.host()) {
    const Clock::time_point start = Clock::now();
    call(rank, *rank.step, direction);
    return call_time(microseconds_since(start), before, rank.step->exposed_exchange(), direction);
  }
  device::Device& device = place_.memory.device();
  const device::OwnedEvent start = device.create_event(true), end = device.create_event(true);
  device.record(start.get(), rank.stream.handle);
  call(rank, *rank.step, direction);
  device.record(end.get(), rank.stream.handle);
  finish(rank);
  return call_time(device.elapsed_ms(start.get(), end.get()) * 1e3, before, rank.step->exposed_exchange(),
                   direction);
}

std::optional<double> Session::exposed_us(Direction direction, int calls) {
  std::vector<std::vector<double>> working(ranks_.size());
  const std::vector<double> all = slowest(calls, [&](int index, const Team::Barrier& barrier) {
    const auto local = static_cast<std::size_t>(index);
    const CallTime time = timed_call(ranks_[local], direction, barrier);
    working[local].push_back(time.working);
    return time.all;
  });
  std::vector<std::size_t> told(ranks_.size());
  const std::vector<double> but_for_waits = slowest(calls, [&](int index, const Team::Barrier&) {
    const auto local = static_cast<std::size_t>(index);
    return working[local][told[local]++];
  });
  std::vector<CallTime> slowest_of_each;
  for (std::size_t i = 0; i < all.size(); ++i) slowest_of_each.push_back({all[i], but_for_waits[i]});
  return mean_exposed(slowest_of_each);
}

double Session::time_begin_step(int iters) {
  return median(slowest(iters, [&](int index, const Team::Barrier&) {
    const Clock::time_point start = Clock::now();
    const Step step = begin(index);
    return microseconds_since(start);
  }));
}

}  // namespace bdcp::bench
