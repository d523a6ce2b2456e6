#include "comm/nccl_comm.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;
namespace nccl = device::nccl;

constexpr std::chrono::seconds kForCallers{1};   // whoever is inside NCCL when it is aborted has this long
constexpr std::chrono::seconds kForFinalize{2};  // peers that go at the same time are answered
constexpr std::chrono::seconds kForLaunch{1};    // a launch that takes longer waits for a peer
constexpr int kDevices = 64;

/// NCCL forbids that threads issue to one device at the same time, whatever communicators they use.
std::mutex& issue_mutex(int ordinal) {
  static auto* const mutexes =
      new std::array<std::mutex, kDevices>;  // threads may be left when the process ends
  return (*mutexes)[static_cast<std::size_t>(ordinal % kDevices)];
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Short waits are the rule: connections exist, and NCCL only hands over to its own thread. The shortest sleep
/// takes longer than that.
class Pause {
 public:
  void operator()() {
    const auto waited = Clock::now() - start_;
    if (waited < kSpin) {
      relax();
    } else if (waited < kYield) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(waited < kSleepBriefly ? 20 : 1000));
    }
  }

 private:
  static constexpr std::chrono::microseconds kSpin{50}, kYield{500}, kSleepBriefly{100000};
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

NcclComm::NcclComm(std::shared_ptr<const device::NcclLibrary> library, std::shared_ptr<device::Device> device)
    : library_(std::move(library)), device_(std::move(device)) {}

nccl::UniqueId NcclComm::unique_id() const {
  nccl::UniqueId id{};
  library_->check(library_->ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

nccl::Comm NcclComm::living(const Attend& attend) const {
  const nccl::Comm comm = comm_.load();
  if (comm && !aborted_) return comm;
  attend();  // knows why
  throw Error(ErrorCode::peer_failed, "the NCCL communicator was aborted", ErrorScope::communicator);
}

nccl::Result NcclComm::state(nccl::Comm comm) const {
  nccl::Result result = nccl::success;
  library_->check(library_->ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError", comm);
  return result;
}

/// Until NCCL's background work is done: nothing may be enqueued before.
void NcclComm::settle(const char* call, const Attend& attend) {
  Pause pause;
  for (;;) {
    const nccl::Comm comm = living(attend);
    const nccl::Result result = state(comm);
    library_->check(result, call, comm);
    if (result == nccl::success) return;
    attend();
    pause();
  }
}

void NcclComm::create(const nccl::UniqueId& id, int size, int rank, const Attend& attend) {
  std::lock_guard inside(inside_);
  nccl::Config config;
  config.blocking = 0;
  config.max_ctas = kMaxCtas;
  config.cga_cluster_size = 0;  // clusters would need SMs that are free side by side
  device_->in_context([&] {
    nccl::Comm comm = nullptr;
    const nccl::Result result = library_->ncclCommInitRankConfig(&comm, size, id, rank, &config);
    comm_ = comm;
    library_->check(result, "ncclCommInitRankConfig", comm);
    settle("ncclCommInitRankConfig", attend);
  });
}

void NcclComm::Operations::send(const void* data, std::size_t bytes, int peer) const {
  library_.check(library_.ncclSend(data, bytes, nccl::kUint8, peer, comm_, stream_), "ncclSend", comm_);
}
void NcclComm::Operations::recv(void* data, std::size_t bytes, int peer) const {
  library_.check(library_.ncclRecv(data, bytes, nccl::kUint8, peer, comm_, stream_), "ncclRecv", comm_);
}
void NcclComm::Operations::all_gather(const void* own, void* all, std::size_t bytes) const {
  library_.check(library_.ncclAllGather(own, all, bytes, nccl::kUint8, comm_, stream_), "ncclAllGather", comm_);
}

void NcclComm::enqueue(void* stream, const std::function<void(const Operations&)>& body, const Attend& attend) {
  std::lock_guard inside(inside_);
  const auto work = [&] {
    std::unique_lock issue(issue_mutex(device_->facts().ordinal), std::defer_lock);
    for (Pause pause; !issue.try_lock(); pause()) attend();
    const nccl::Comm comm = living(attend);
    library_->check(library_->ncclGroupStart(), "ncclGroupStart", comm);
    try {
      body(Operations(*library_, comm, stream));
    } catch (...) {
      (void)library_->ncclGroupEnd();  // the thread's group must not stay open
      throw;
    }
    const nccl::Result result = library_->ncclGroupEnd();
    library_->check(result, "ncclGroupEnd", comm);
    if (result == nccl::success) return;
    // NCCL's own thread launches now, and no other communicator's may at the same time. Ranks that connect wait
    // for each other, though: two communicators that hold each other up this way must both get on.
    const auto launched = Clock::now() + kForLaunch;
    const auto attend_holding = [&] {
      attend();
      if (issue && Clock::now() >= launched) issue.unlock();
    };
    settle("ncclGroupEnd", std::cref(attend_holding));
  };
  device_->in_context(std::cref(work));
}

std::optional<Error> NcclComm::pending_error() {
  std::unique_lock inside(inside_, std::try_to_lock);
  if (!inside) return std::nullopt;  // whoever is inside looks itself
  const nccl::Comm comm = comm_.load();
  if (!comm || aborted_) return std::nullopt;
  nccl::Result result = nccl::success;
  if (library_->ncclCommGetAsyncError(comm, &result) != nccl::success || result == nccl::success ||
      result == nccl::in_progress)
    return std::nullopt;
  return library_->error(result, "ncclCommGetAsyncError", comm);
}

void NcclComm::abort() noexcept {
  if (aborted_.exchange(true)) return;
  std::unique_lock inside(inside_, std::try_to_lock);
  for (const auto end = Clock::now() + kForCallers; !inside && Clock::now() < end; (void)inside.try_lock())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // Where it was in vain a caller hangs in NCCL, which this ends.
  const nccl::Comm comm = comm_.exchange(nullptr);
  if (!comm) return;
  try {
    device_->in_context([&] { (void)library_->ncclCommAbort(comm); });
  } catch (const std::exception&) {
    // The context is gone, and with it what there was to end.
  }
}

void NcclComm::close() noexcept {
  {
    std::lock_guard inside(inside_);
    const nccl::Comm comm = comm_.load();
    if (!comm || aborted_) return;
    bool final = false;
    try {
      device_->in_context([&] {
        library_->check(library_->ncclCommFinalize(comm), "ncclCommFinalize", comm);
        Pause pause;
        nccl::Result result = nccl::in_progress;
        for (const auto end = Clock::now() + kForFinalize;
             result == nccl::in_progress && !aborted_ && Clock::now() < end;) {
          result = state(comm);
          if (result == nccl::in_progress) pause();
        }
        final = result == nccl::success;
        // An abort may have come first.
        if (final && comm_.exchange(nullptr) == comm) (void)library_->ncclCommDestroy(comm);
      });
    } catch (const std::exception&) {
      final = false;
    }
    if (final) return;
  }
  abort();
}

}  // namespace bdcp::comm
