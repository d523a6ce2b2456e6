// A communicator over the ranks of the caller's ncclComm_t.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/check.h"
#include "bdcp/communicator.h"
#include "comm/bytes.h"
#include "comm/group.h"
#include "device/device.h"
#include "device/nccl_library.h"

namespace bdcp {
namespace {

namespace nccl = device::nccl;
constexpr std::size_t kMostBytes = 8192;

/// Host bytes by the caller's communicator, from rank 0.
class AdoptedBroadcast {
 public:
  AdoptedBroadcast(std::shared_ptr<const device::NcclLibrary> library, std::shared_ptr<device::Device> device,
                   nccl::Comm comm, double timeout_s)
      : library_(std::move(library)), device_(std::move(device)), comm_(comm), timeout_s_(timeout_s) {}

  std::string operator()(const std::string& bytes) const {
    std::string message;
    comm::put_text(message, bytes);
    require(message.size() <= kMostBytes, ErrorCode::unsupported, [&] {
      return fmt::format("rank 0 has {} bytes to tell; allowed are {}", message.size(), kMostBytes);
    });
    message.resize(kMostBytes);
    device::Buffer memory = device_->allocate(kMostBytes);
    device::OwnedStream stream = device_->create_stream();
    const device::OwnedEvent done = device_->create_event();
    device_->upload(memory.get(), message.data(), kMostBytes);
    device_->in_context([&] {
      library_->check(
          library_->ncclBroadcast(memory.get(), memory.get(), kMostBytes, nccl::kUint8, 0, comm_, stream.get()),
          "ncclBroadcast", comm_);
    });
    try {
      settle();
      device_->record(done.get(), stream.get());
      wait([&] { return device_->done(done.get()); });
    } catch (const Error&) {
      // The broadcast may still come about, and what it writes to must be there then.
      (void)memory.release();
      (void)stream.release();
      throw;
    }
    device_->download(message.data(), memory.get(), kMostBytes);
    comm::Reader reader(message);
    std::string told(reader.text());
    require(reader.ok(), ErrorCode::nccl_error,
            "the broadcast over the given communicator carried other bytes");
    return told;
  }

 private:
  /// The given communicator may be a non-blocking one.
  void settle() const {
    wait([&] {
      nccl::Result result = nccl::success;
      library_->check(library_->ncclCommGetAsyncError(comm_, &result), "ncclCommGetAsyncError", comm_);
      library_->check(result, "ncclBroadcast", comm_);
      return result == nccl::success;
    });
  }
  template <class Done>
  void wait(const Done& done) const {
    const comm::Deadline deadline = comm::deadline_in(timeout_s_);
    while (!done()) {
      require(std::chrono::steady_clock::now() < deadline, ErrorCode::timeout, [&] {
        return fmt::format(
            "not all ranks of the given ncclComm_t came to the creation of the communicator within "
            "{:.3g} s",
            timeout_s_);
      });
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  const std::shared_ptr<const device::NcclLibrary> library_;
  const std::shared_ptr<device::Device> device_;
  const nccl::Comm comm_;
  const double timeout_s_;
};

}  // namespace

Communicator Communicator::from_nccl(void* nccl_comm, const ProcessOptions& options) {
  require(nccl_comm != nullptr, ErrorCode::invalid_argument,
          "nccl_comm is null; allowed is an initialised ncclComm_t");
  const Env env = Env::from_process();
  std::string why;
  const auto library = device::NcclLibrary::open(env, &why);
  require(library != nullptr, ErrorCode::library_missing, why.c_str());
  const auto driver = device::Driver::open(env, &why);
  require(driver != nullptr, ErrorCode::library_missing, why.c_str());
  const auto comm = static_cast<nccl::Comm>(nccl_comm);
  int rank = 0, size = 0, ordinal = 0;
  library->check(library->ncclCommUserRank(comm, &rank), "ncclCommUserRank", comm);
  library->check(library->ncclCommCount(comm, &size), "ncclCommCount", comm);
  library->check(library->ncclCommCuDevice(comm, &ordinal), "ncclCommCuDevice", comm);
  return from_broadcast(rank, size, AdoptedBroadcast(library, driver->device(ordinal), comm, options.timeout_s),
                        options);
}

}  // namespace bdcp
