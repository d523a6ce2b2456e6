#include "comm/exposure.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bdcp/error.h"

namespace bdcp::comm {
namespace {

constexpr std::size_t kMostPairs = 256;  // three waits of each layer of a large model
constexpr std::size_t kLooks = 4;        // of the oldest waits by a call; those of one stream end in order

}  // namespace

void ExposedTime::add(Direction direction, double us) {
  Sum& sum = sums_[direction == Direction::forward ? 0 : 1];
  sum.ns += static_cast<std::uint64_t>(std::llround(std::max(us, 0.0) * 1e3));
  ++sum.waits;
  if (total_) total_->add(direction, us);
}

void ExposedTime::miss() {
  ++missed_;
  if (total_) total_->miss();
}

std::optional<ExposureMeter::Events> ExposureMeter::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty() && made_ == kMostPairs) read_locked(kLooks);
  if (free_.empty()) {
    if (made_ == kMostPairs) return std::nullopt;
    Events made{device_->create_event(/*timing=*/true), device_->create_event(/*timing=*/true)};
    ++made_;
    return made;
  }
  Events events = std::move(free_.back());
  free_.pop_back();
  return events;
}

void ExposureMeter::add(Events events, Direction direction, std::shared_ptr<ExposedTime> sum) {
  std::lock_guard lock(mutex_);
  pending_.push_back({std::move(events), direction, std::move(sum)});
}

void ExposureMeter::give_back(Events events) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(events));
}

void ExposureMeter::read() {
  std::lock_guard lock(mutex_);
  read_locked(pending_.size());
}

void ExposureMeter::read_locked(std::size_t most) {
  const device::RelaxedCaptures relaxed(device_->driver());
  // Streams differ in pace: one that is behind must not hide those that are done.
  for (auto wait = pending_.begin(); wait != pending_.end() && most > 0; --most) {
    try {
      if (!device_->done(wait->events.ready.get()) || !device_->done(wait->events.arrived.get())) {
        ++wait;
        continue;
      }
      // Negative where the transfer was there first.
      wait->sum->add(wait->direction,
                     device_->elapsed_ms(wait->events.ready.get(), wait->events.arrived.get()) * 1e3);
    } catch (const Error&) {
      wait->sum->miss();  // a device that fails tells its callers so; a figure is not worth another error
    }
    free_.push_back(std::move(wait->events));
    wait = pending_.erase(wait);
  }
}

}  // namespace bdcp::comm
