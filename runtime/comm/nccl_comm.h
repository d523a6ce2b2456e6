// NcclComm: one ncclComm_t of bdcp's own, non-blocking, with one caller at a time inside NCCL.
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

/// Thread safe. Ended by abort() or close(), not by its destructor.
class NcclComm final : public Transport {
 public:
  /// NCCL takes no more CTAs, each of which occupies an SM: attention leaves that many free while it runs.
  /// NCCL_MAX_CTAS, which is NCCL's, overrides it.
  static constexpr int kMaxCtas = 16;
  /// Called over and over while NCCL works in the background; throws to give up.
  using Attend = std::function<void()>;

  NcclComm(std::shared_ptr<const device::NcclLibrary> library, std::shared_ptr<device::Device> device);
  device::nccl::UniqueId unique_id() const;
  /// Collective.
  void create(const device::nccl::UniqueId& id, int size, int rank, const Attend& attend);

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

  const std::shared_ptr<const device::NcclLibrary> library_;
  const std::shared_ptr<device::Device> device_;
  std::mutex inside_;  // whoever calls NCCL with comm_
  std::atomic<device::nccl::Comm> comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}  // namespace bdcp::comm
