// NcclComm: one ncclComm_t of bdcp's own, with one caller at a time inside NCCL.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/transfer_watch.h"
#include "device/device.h"
#include "device/nccl_library.h"

namespace bdcp::comm {

/// Thread safe. Ended by abort() or close(), not by its destructor. Owned by a shared_ptr.
///
/// Calls that wait for other ranks, creation and the first contact of a pair, come from apart(); all others
/// only enqueue. A blocking ncclComm_t does that on the caller's thread in a fifth of the time that a
/// non-blocking one takes, which starts a thread for each group (figures: tools/results/NOTES.md).
class NcclComm final : public Transport, public std::enable_shared_from_this<NcclComm> {
 public:
  /// NCCL takes no more CTAs, each of which occupies an SM: attention leaves that many free while it runs.
  /// NCCL_MAX_CTAS, which is NCCL's, overrides it.
  static constexpr int kMaxCtas = 16;
  /// Called over and over while somebody else works in NCCL; throws to give up.
  using Attend = std::function<void()>;

  NcclComm(std::shared_ptr<const device::NcclLibrary> library, std::shared_ptr<device::Device> device);
  device::nccl::UniqueId unique_id() const;
  /// Collective. `blocking`: later calls wait for nobody, as all ranks that talk to each other are connected
  /// before. NCCL_COMM_BLOCKING, which is NCCL's, overrides it.
  void create(const device::nccl::UniqueId& id, int size, int rank, bool blocking, const Attend& attend);
  /// Runs `body`, which may wait for other ranks, on a thread of its own. If `attend` gives up, body goes on
  /// alone: it owns what it uses, and the communicator ends once it has returned, as nobody may be inside NCCL
  /// then.
  void apart(const std::function<void()>& body, const Attend& attend);

  /// What body(ops) asks for, enqueued as one group.
  class Operations {
   public:
    void send(const void* data, std::size_t bytes, int peer) const;
    void recv(void* data, std::size_t bytes, int peer) const;
    void all_gather(const void* own, void* all, std::size_t bytes) const;

   private:
    friend class NcclComm;
    Operations(const device::NcclLibrary& library, device::nccl::Comm comm, void* stream)
        : library_(library), comm_(comm), stream_(stream) {}
    const device::NcclLibrary& library_;
    device::nccl::Comm comm_;
    void* stream_;
  };
  void enqueue(void* stream, const std::function<void(const Operations&)>& body, const Attend& attend);

  std::optional<Error> pending_error() override;
  void abort() noexcept override;
  void close() noexcept override;

 private:
  device::nccl::Result state(device::nccl::Comm comm) const;
  void settle(const char* call, const Attend& attend);
  device::nccl::Comm living(const Attend& attend) const;
  void end() noexcept;

  const std::shared_ptr<const device::NcclLibrary> library_;
  const std::shared_ptr<device::Device> device_;
  std::mutex inside_;  // whoever calls NCCL with comm_
  std::atomic<device::nccl::Comm> comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
  std::mutex ending_;  // guards the next one, and aborted_ against it
  int alone_ = 0;      // threads of apart()
};

}  // namespace bdcp::comm
