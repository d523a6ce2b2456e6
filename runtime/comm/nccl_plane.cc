#include "comm/nccl_plane.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/detached.h"
#include "comm/nccl_comm.h"
#include "comm/row_copy.h"
#include "comm/transfer_watch.h"

namespace bdcp::comm {
namespace {

namespace nccl = device::nccl;
using Clock = std::chrono::steady_clock;

/// Up to here every pair is connected ahead; beyond, neighbours only, and the others when they first talk.
constexpr int kConnectAll = 32;
constexpr std::size_t kProbe = 256;

std::size_t bytes_of(const StridedRows& rows) { return static_cast<std::size_t>(rows.bytes()); }

class NcclPlane final : public StreamPlane {
 public:
  NcclPlane(ControlChannel& channel, const Env& env) : channel_(channel), env_(env) {}

  std::string why_not(device::Device& device) override;
  std::string describe() const override;
  int transfer_sms() const override { return NcclComm::kMaxCtas; }
  void prepare(const std::shared_ptr<device::Device>& device, Deadline deadline) override;
  void exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                const TransferBounds& bounds) override;
  void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) override;

 private:
  int rank() const { return channel_.membership().rank; }
  int size() const { return channel_.membership().size; }
  std::vector<std::string> introduce(device::Device& device, const nccl::UniqueId& id, Deadline deadline);
  /// NcclComm::Attend; passed by reference, as a function object that owns it would allocate.
  struct Patience {
    const NcclPlane& plane;
    const char* what;
    Deadline deadline, start = Clock::now();
    void operator()() const;
  };
  void connect(device::Device& device, Deadline deadline);
  /// `any`: body has operations for NCCL.
  template <class Body>
  void run(Call call, bool any, const Lane& lane, const TransferBounds& bounds, const Body& body);

  ControlChannel& channel_;
  const Env env_;
  mutable std::mutex mutex_;  // guards what is looked up once
  std::shared_ptr<const device::NcclLibrary> library_;
  std::shared_ptr<device::Device> device_;
  std::shared_ptr<NcclComm> comm_;
  std::optional<TransferWatch> watch_;
};

std::string NcclPlane::why_not(device::Device& device) {
  std::lock_guard lock(mutex_);
  // Another Runtime's Device for the same GPU is as good: both hold its primary context.
  if (device_ && device_->facts().ordinal != device.facts().ordinal)
    return fmt::format("its transport was set up on device {}, and a communicator serves one device per rank",
                       device_->facts().ordinal);
  if (library_) return {};
  std::string why;
  library_ = device::NcclLibrary::open(env_, &why);
  return library_ ? std::string() : why;
}

std::string NcclPlane::describe() const {
  std::lock_guard lock(mutex_);
  return library_ ? "nccl " + library_->version_text() : "nccl";
}

/// Rank 0's id, and a check that no device serves two ranks, which NCCL would refuse less clearly.
std::vector<std::string> NcclPlane::introduce(device::Device& device, const nccl::UniqueId& id,
                                              Deadline deadline) {
  const std::string place = fmt::format("device {} of process {} on {}", device.facts().ordinal, getpid(),
                                        channel_.membership().hosts[static_cast<std::size_t>(rank())]);
  // Processes number the devices they see: only the UUID tells that two of them mean the same one.
  const std::string& uuid = device.facts().uuid;
  std::string payload(id.internal, sizeof id.internal);
  payload += (uuid.empty() ? place : "GPU " + uuid) + "\n" + place;
  auto payloads = channel_.meet(Channel::frames, Call::transport, std::move(payload), deadline);
  const auto device_of = [&](std::size_t r) {
    return payloads[r].substr(sizeof id.internal,
                              payloads[r].find('\n', sizeof id.internal) - sizeof id.internal);
  };
  const auto place_of = [&](std::size_t r) {
    return payloads[r].substr(payloads[r].find('\n', sizeof id.internal) + 1);
  };
  for (std::size_t a = 0; a < payloads.size(); ++a)
    for (std::size_t b = a + 1; b < payloads.size(); ++b)
      require(device_of(a) != device_of(b), ErrorCode::invalid_argument, [&] {
        return fmt::format(
            "group '{}': ranks {} and {} both run on {} ({}; {}); each rank needs a device of its own",
            channel_.membership().name, a, b, device_of(a), place_of(a), place_of(b));
      });
  return payloads;
}

void NcclPlane::Patience::operator()() const {
  ControlChannel& channel = plane.channel_;
  channel.check();
  if (Clock::now() < deadline) return;
  const Error error(
      ErrorCode::timeout,
      fmt::format("group '{}': rank {} waited {:.3g} s for NCCL to {}", channel.membership().name, plane.rank(),
                  std::chrono::duration<double>(Clock::now() - start).count(), what),
      ErrorScope::communicator);
  channel.fail_everywhere(error);
  channel.check();
  throw error;
}

void NcclPlane::prepare(const std::shared_ptr<device::Device>& device, Deadline deadline) {
  std::lock_guard lock(mutex_);
  if (comm_) return;
  require(library_ != nullptr, ErrorCode::internal, "the transport was not asked whether it can");
  if (rank() == 0 && env_.launch_order.value_or("0") != "1")
    channel_.log().warn(
        "NCCL_LAUNCH_ORDER_IMPLICIT is not 1: if this process has other NCCL communicators on the same device, "
        "all ranks must call them and bdcp in the same order, or they may wait for each other for ever; 1 lets "
        "NCCL keep the order");
  auto made = std::make_shared<NcclComm>(library_, device);
  nccl::UniqueId id{};
  if (rank() == 0) device->in_context([&] { id = made->unique_id(); });
  const std::vector<std::string> payloads = introduce(*device, id, deadline);
  std::memcpy(id.internal, payloads[0].data(), sizeof id.internal);
  try {
    made->create(id, size(), rank(), Patience{*this, "form a communicator", deadline});
  } catch (...) {
    try {
      run_detached([made] { made->abort(); });
    } catch (const std::exception&) {
      made->abort();  // there is no thread to be had: it may block here
    }
    throw;
  }
  device_ = device;
  comm_ = std::move(made);
  watch_.emplace(channel_, device, comm_);
  connect(*device, deadline);
}

/// NCCL connects a pair when it first talks, and both ends wait for it. Here all do, in NCCL's own order, so
/// that later calls wait for nobody.
void NcclPlane::connect(device::Device& device, Deadline deadline) {
  const auto pieces = static_cast<std::size_t>(size());
  const device::Buffer own = device.allocate(kProbe), all = device.allocate(kProbe * pieces);
  const device::OwnedStream stream = device.create_stream();
  const device::OwnedEvent done = device.create_event();
  device.fill_async(own.get(), 0, kProbe, stream.get());
  const Patience wait{*this, "connect the ranks", deadline};
  const auto piece = [&](int peer) {
    return static_cast<std::byte*>(all.get()) + kProbe * static_cast<std::size_t>(peer);
  };
  comm_->enqueue(
      stream.get(), [&](const NcclComm::Operations& ops) { ops.all_gather(own.get(), all.get(), kProbe); },
      wait);
  comm_->enqueue(
      stream.get(),
      [&](const NcclComm::Operations& ops) {
        for (int peer = 0; peer < size(); ++peer) {
          const int distance = peer > rank() ? peer - rank() : rank() - peer;
          if (distance == 0 || (size() > kConnectAll && distance > 1)) continue;
          ops.send(own.get(), kProbe, peer);
          ops.recv(piece(peer), kProbe, peer);
        }
      },
      wait);
  device.record(done.get(), stream.get());
  while (!device.done(done.get())) {
    wait();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

template <class Body>
void NcclPlane::run(Call call, bool any, const Lane& lane, const TransferBounds& bounds, const Body& body) {
  require(comm_ && device_->facts().ordinal == lane.device->facts().ordinal, ErrorCode::internal,
          "the transport is not set up for this device");
  channel_.check();
  const Patience wait{*this, "take a transfer", deadline_in(bounds.start_s)};
  // Events of a capture cannot be polled: a captured exchange has no deadline.
  const bool watched = !lane.device->capturing(lane.stream.handle);
  TransferWatch::Events events;
  if (watched) {
    events = watch_->take_events();
    lane.device->record(events.started.get(), lane.stream.handle);
  }
  // A rank without any still counts the transfer: the others may ask how far it is.
  if (any) comm_->enqueue(lane.stream.handle, std::cref(body), std::cref(wait));
  if (!watched) return;
  lane.device->record(events.done.get(), lane.stream.handle);
  watch_->add(std::move(events), call, bounds);
}

void NcclPlane::exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                         const TransferBounds& bounds) {
  const auto own = rank();
  auto send = sends.begin();
  for (const TransferOp& recv : recvs) {
    if (recv.peer != own || recv.rows.bytes() == 0) continue;
    while (send != sends.end() && (send->peer != own || send->rows.bytes() == 0)) ++send;
    require(send != sends.end(), ErrorCode::invalid_argument, "exchange: own rows are received but not sent");
    copy_on_device(*lane.device, lane.stream.handle, recv.rows, (send++)->rows);
  }
  const auto travels = [&](const TransferOp& op) { return op.peer != own && op.rows.bytes() > 0; };
  bool any = false;
  for (const auto ops : {sends, recvs})
    for (const TransferOp& op : ops) {
      if (!travels(op)) continue;
      any = true;
      require(op.rows.contiguous(), ErrorCode::internal, "NCCL moves contiguous rows only");
    }
  run(Call::exchange_cuda, any, lane, bounds, [&](const NcclComm::Operations& operations) {
    for (const TransferOp& op : sends)
      if (travels(op)) operations.send(op.rows.data, bytes_of(op.rows), op.peer);
    for (const TransferOp& op : recvs)
      if (travels(op)) operations.recv(op.rows.data, bytes_of(op.rows), op.peer);
  });
}

void NcclPlane::all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) {
  for (const GatherOp& op : ops)
    require(op.all.contiguous() || op.all.bytes() == 0, ErrorCode::internal,
            "NCCL gathers contiguous rows only");
  const auto own_place = [&](const GatherOp& op) { return op.all.slice(rank() * op.own.rows, op.own.rows); };
  for (const GatherOp& op : ops)
    if (op.own.bytes() > 0 && !op.own.contiguous())
      copy_on_device(*lane.device, lane.stream.handle, own_place(op), op.own);
  const bool any = std::any_of(ops.begin(), ops.end(), [](const GatherOp& op) { return op.own.bytes() > 0; });
  run(Call::gather_cuda, any, lane, bounds, [&](const NcclComm::Operations& operations) {
    for (const GatherOp& op : ops) {
      if (op.own.bytes() == 0) continue;
      const StridedRows from = op.own.contiguous() ? op.own : own_place(op);
      operations.all_gather(from.data, op.all.data, bytes_of(op.own));
    }
  });
}

}  // namespace

std::unique_ptr<StreamPlane> make_nccl_plane(ControlChannel& channel, const Env& env) {
  return std::make_unique<NcclPlane>(channel, env);
}

}  // namespace bdcp::comm
