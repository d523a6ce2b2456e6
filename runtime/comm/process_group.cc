#include "comm/process_group.h"

#include <fmt/format.h>

#include <utility>

#include "comm/one_thread.h"
#include "comm/transfer_ops.h"
#include "device/fork_guard.h"

namespace bdcp::comm {
namespace {

class ProcessGroup final : public Group {
 public:
  ProcessGroup(std::unique_ptr<ControlChannel> channel, const Planes& planes)
      : channel_(std::move(channel)), host_(planes.host(*channel_)) {
    if (planes.streams) streams_ = planes.streams(*channel_);
  }
  ~ProcessGroup() override {
    if (!guard_.forked()) return;
    // The channel's thread does not exist here and its locks may be held for ever: the child keeps its copy.
    (void)streams_.release();
    (void)host_.release();
    (void)channel_.release();
  }

  int rank() const override { return channel_->membership().rank; }
  int size() const override { return channel_->membership().size; }
  const std::string& name() const override { return channel_->membership().name; }
  const std::vector<std::string>& hosts() const override { return channel_->membership().hosts; }

  std::vector<std::string> all_gather_frames(std::string frame, Deadline deadline) override {
    const OneThread claim(frames_busy_, *this);
    return channel_->meet(Channel::frames, Call::frames, std::move(frame), deadline);
  }
  void exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                const TransferBounds& bounds) override {
    const OneThread claim(data_busy_, *this);
    check_peers(sends, size());
    check_peers(recvs, size());
    guarded([&] {
      if (lane.device) return streams(lane).exchange(sends, recvs, lane, bounds);
      transfer(Call::exchange_host, encode_sides(sends, recvs), sends, recvs, lane, bounds);
    });
  }
  void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) override {
    const OneThread claim(data_busy_, *this);
    unfold_gathers(ops, rank(), size(), sends_, recvs_);
    guarded([&] {
      if (lane.device) return streams(lane).all_gather(ops, lane, bounds);
      transfer(Call::gather_host, encode_gathers(ops), sends_, recvs_, lane, bounds);
    });
  }

  std::string why_not(device::Device* device) const override {
    if (!device) return {};
    return streams_ ? streams_->why_not(*device) : "it moves host memory only";
  }
  std::string transport(device::Device* device) const override {
    return device && streams_ ? streams_->describe() : "sockets";
  }
  void prepare(const std::shared_ptr<device::Device>& device, Deadline deadline) override {
    if (!device) return;
    const OneThread claim(frames_busy_, *this);
    guarded([&] { streams({{}, device.get()}).prepare(device, deadline); });
  }
  int transfer_sms(device::Device* device) const override {
    return device && streams_ ? streams_->transfer_sms() : 0;
  }
  bool contiguous_only(device::Device* device) const override { return device != nullptr; }
  bool set_heartbeat(double seconds) override {
    require_same_process();
    channel_->set_heartbeat(seconds);
    return true;
  }
  void check() const override {
    require_same_process();
    channel_->check();
  }
  void fail(const Error& error) override {
    require_same_process();
    channel_->fail(rank(), error);
  }

 private:
  void require_same_process() const {
    if (guard_.forked())
      throw Error(ErrorCode::forked,
                  fmt::format("group '{}' was created before a fork; the child cannot use it", name()),
                  ErrorScope::process);
  }
  StreamPlane& streams(const Lane& lane) const {
    const std::string why = streams_ ? std::string() : why_not(lane.device);
    if (!why.empty()) throw Error(ErrorCode::unsupported, fmt::format("group '{}': {}", name(), why));
    return *streams_;
  }
  /// The others learn of whatever goes wrong.
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      channel_->fail(rank(), error);  // no effect if this is the pending failure itself
      throw;
    } catch (const std::exception& error) {
      channel_->fail(rank(), Error(ErrorCode::internal, error.what(), ErrorScope::communicator));
      throw;
    }
  }
  void transfer(Call call, std::string own_sides, std::span<const TransferOp> sends,
                std::span<const TransferOp> recvs, const Lane& lane, const TransferBounds& bounds);

  const device::ForkGuard guard_;
  std::unique_ptr<ControlChannel> channel_;
  std::unique_ptr<DataPlane> host_;
  std::unique_ptr<StreamPlane> streams_;
  std::atomic<bool> frames_busy_ = false, data_busy_ = false;
  std::vector<TransferOp> sends_, recvs_;  // of a gather
};

void ProcessGroup::transfer(Call call, std::string own_sides, std::span<const TransferOp> sends,
                            std::span<const TransferOp> recvs, const Lane& lane, const TransferBounds& bounds) {
  const auto sides = channel_->meet(Channel::data, call, std::move(own_sides), deadline_in(bounds.start_s));
  const Deadline deadline = deadline_in(bounds.run_s);
  if (const auto error =
          call == Call::gather_host ? check_gathers(name(), sides) : check_sides(name(), sides)) {
    channel_->fail_everywhere(*error);
    channel_->check();
    throw *error;
  }
  host_->transfer(sends, recvs, lane, call, deadline);
  (void)channel_->meet(Channel::data, Call::finish, {}, deadline);
}

}  // namespace

std::shared_ptr<Group> make_process_group(std::unique_ptr<ControlChannel> channel, const Planes& planes) {
  return std::make_shared<ProcessGroup>(std::move(channel), planes);
}

}  // namespace bdcp::comm
