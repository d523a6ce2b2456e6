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
  ProcessGroup(std::unique_ptr<ControlChannel> channel,
               const std::function<std::unique_ptr<DataPlane>(ControlChannel&)>& make_plane)
      : channel_(std::move(channel)), plane_(make_plane(*channel_)) {}
  ~ProcessGroup() override {
    if (!guard_.forked()) return;
    // The channel's thread does not exist here and its locks may be held for ever: the child keeps its copy.
    (void)plane_.release();
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
    transfer(lane.device ? Call::exchange_cuda : Call::exchange_host, encode_sides(sends, recvs), sends, recvs,
             lane, bounds);
  }
  void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) override {
    const OneThread claim(data_busy_, *this);
    unfold_gathers(ops, rank(), size(), sends_, recvs_);
    transfer(lane.device ? Call::gather_cuda : Call::gather_host, encode_gathers(ops), sends_, recvs_, lane,
             bounds);
  }

  bool serves(device::Device* device) const override { return plane_->serves({{}, device}); }
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
  void transfer(Call call, std::string own_sides, std::span<const TransferOp> sends,
                std::span<const TransferOp> recvs, const Lane& lane, const TransferBounds& bounds);

  const device::ForkGuard guard_;
  std::unique_ptr<ControlChannel> channel_;
  std::unique_ptr<DataPlane> plane_;
  std::atomic<bool> frames_busy_ = false, data_busy_ = false;
  std::vector<TransferOp> sends_, recvs_;  // of a gather
};

void ProcessGroup::transfer(Call call, std::string own_sides, std::span<const TransferOp> sends,
                            std::span<const TransferOp> recvs, const Lane& lane, const TransferBounds& bounds) {
  if (!plane_->serves(lane))
    throw Error(ErrorCode::unsupported, fmt::format("group '{}' moves no {} memory between processes", name(),
                                                    lane.device ? "device" : "host"));
  try {
    const auto sides = channel_->meet(Channel::data, call, std::move(own_sides), deadline_in(bounds.start_s));
    const Deadline deadline = deadline_in(bounds.run_s);
    const bool gather = call == Call::gather_host || call == Call::gather_cuda;
    if (const auto error = gather ? check_gathers(name(), sides) : check_sides(name(), sides)) {
      channel_->fail_everywhere(*error);
      channel_->check();
      throw *error;
    }
    plane_->transfer(sends, recvs, lane, call, deadline);
    (void)channel_->meet(Channel::data, Call::finish, {}, deadline);
  } catch (const Error& error) {
    channel_->fail(rank(), error);  // no effect if this is the pending failure itself
    throw;
  } catch (const std::exception& error) {
    channel_->fail(rank(), Error(ErrorCode::internal, error.what(), ErrorScope::communicator));
    throw;
  }
}

}  // namespace

std::shared_ptr<Group> make_process_group(
    std::unique_ptr<ControlChannel> channel,
    const std::function<std::unique_ptr<DataPlane>(ControlChannel&)>& make_plane) {
  return std::make_shared<ProcessGroup>(std::move(channel), make_plane);
}

}  // namespace bdcp::comm
