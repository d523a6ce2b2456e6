// What the exchange costs a step beyond what attention hides: how long calls wait for transfers once their own
// work is done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bdcp/types.h"
#include "device/device.h"

namespace bdcp::comm {

/// Sums by direction. Thread safe.
class ExposedTime {
 public:
  /// What is added here is added there too.
  explicit ExposedTime(std::shared_ptr<ExposedTime> total = nullptr) : total_(std::move(total)) {}
  void add(Direction direction, double us);
  /// A wait that could not be timed.
  void miss();

  double us(Direction direction) const { return static_cast<double>(of(direction).ns.load()) / 1e3; }
  std::uint64_t waits(Direction direction) const { return of(direction).waits.load(); }
  std::uint64_t missed() const { return missed_.load(); }

 private:
  struct Sum {
    std::atomic<std::uint64_t> ns{0}, waits{0};
  };
  const Sum& of(Direction direction) const { return sums_[direction == Direction::forward ? 0 : 1]; }
  std::array<Sum, 2> sums_;
  std::atomic<std::uint64_t> missed_{0};
  const std::shared_ptr<ExposedTime> total_;
};

/// Times waits on one device by pairs of events, which are read some time after they have come about: nobody
/// waits for them. Thread safe.
class ExposureMeter {
 public:
  explicit ExposureMeter(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}

  /// `ready` belongs on the stream that waits, where its own work ends; `arrived` on that of the transfer.
  struct Events {
    device::OwnedEvent ready, arrived;
  };
  /// nullopt: so many waits are ahead of the device that this one goes untimed.
  std::optional<Events> take();
  /// Both are recorded.
  void add(Events events, Direction direction, std::shared_ptr<ExposedTime> sum);
  /// They are not.
  void give_back(Events events);
  /// Adds up the waits that are over.
  void read();

 private:
  struct Wait {
    Events events;
    Direction direction;
    std::shared_ptr<ExposedTime> sum;
  };
  /// Looks at the `most` oldest waits.
  void read_locked(std::size_t most);

  const std::shared_ptr<device::Device> device_;
  std::mutex mutex_;  // guards what follows
  std::size_t made_ = 0;
  std::vector<Events> free_;
  std::deque<Wait> pending_;
};

}  // namespace bdcp::comm
