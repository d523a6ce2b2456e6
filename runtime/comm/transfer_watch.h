// TransferWatch: knows when stream-ordered transfers are late, without anybody waiting for them: polls events,
// keeps deadlines, ends the transport when the group fails.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/control_channel.h"
#include "device/device.h"

namespace bdcp::comm {

/// What a watch ends, on threads of its own, where it may block.
class Transport {
 public:
  virtual ~Transport() = default;
  /// A failure that the library has seen; must not wait.
  virtual std::optional<Error> pending_error() = 0;
  /// Whatever is in flight ends, on this rank. Any number of times, from any thread.
  virtual void abort() noexcept = 0;
  /// Nothing is in flight.
  virtual void close() noexcept = 0;
};

/// A transfer's clock runs from the moment all ranks have started it: their streams have reached it. A rank
/// that is not late says nothing; one that waits tells the others how far it is, and they answer.
class TransferWatch {
 public:
  TransferWatch(ControlChannel& channel, std::shared_ptr<device::Device> device,
                std::shared_ptr<Transport> transport);
  /// Waits for nothing: what is in flight, and the transport, end on the watch's threads.
  ~TransferWatch();
  TransferWatch(const TransferWatch&) = delete;
  TransferWatch& operator=(const TransferWatch&) = delete;

  struct Events {
    device::OwnedEvent started, done;
  };
  /// For the next transfer: the issuer records the first before it and the second after it.
  Events take_events();
  /// It is enqueued. Every rank calls this for the same transfers.
  void add(Events events, Call call, const TransferBounds& bounds);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the threads
};

}  // namespace bdcp::comm
