#include "comm/in_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <utility>

#include "comm/one_thread.h"
#include "comm/rendezvous.h"
#include "comm/row_copy.h"
#include "comm/transfer_ops.h"

namespace bdcp::comm {
namespace {

/// What a rank shows its peers. Written by its own thread before a meeting, read by peers after it.
struct Member {
  /// By parity of the meeting: a slot is written again only after every peer has come to the meeting after.
  std::array<std::string, 2> frames;
  std::span<const TransferOp> sends;  // read between the two meetings of a transfer
  void* ready = nullptr;              // event: the sources are complete
  void* copied = nullptr;             // event: this rank's latest copies out of its peers are complete
  /// Events by device, kept for the life of the group: a peer may still be about to wait for one.
  struct Events {
    device::Device* device = nullptr;
    device::OwnedEvent ready, copied;
  };
  std::vector<std::unique_ptr<Events>> events;
};

struct Shared {
  Shared(std::string name, std::vector<std::string> host_names)
      : rendezvous(std::move(name), static_cast<int>(host_names.size())),
        hosts(std::move(host_names)),
        members(hosts.size()) {}
  Rendezvous rendezvous;
  const std::vector<std::string> hosts;
  std::vector<Member> members;
};

class InProcessGroup final : public Group {
 public:
  InProcessGroup(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank), cursors_(shared_->members.size()) {}
  ~InProcessGroup() override { shared_->rendezvous.leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->members.size()); }
  const std::string& name() const override { return shared_->rendezvous.name(); }
  const std::vector<std::string>& hosts() const override { return shared_->hosts; }

  std::vector<std::string> all_gather_frames(std::string frame, Deadline deadline) override;
  void exchange(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                const TransferBounds& bounds) override {
    const OneThread claim(data_busy_, *this);
    transfer(lane.device ? Call::exchange_cuda : Call::exchange_host, sends, recvs, lane, bounds);
  }
  void all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) override;

  void check() const override { shared_->rendezvous.check(rank_); }
  void fail(const Error& error) override { shared_->rendezvous.fail(rank_, error); }

 private:
  Member& self() { return shared_->members[static_cast<std::size_t>(rank_)]; }
  Member::Events& events_on(const Lane& lane);
  void transfer(Call call, std::span<const TransferOp> sends, std::span<const TransferOp> recvs,
                const Lane& lane, const TransferBounds& bounds);
  /// Calls body(source member, source rows, destination rows) for every receive; reports sides that disagree.
  template <class Body>
  void for_each_match(std::span<const TransferOp> recvs, const Body& body);
  void check_sides(std::span<const TransferOp> recvs);
  void pull(std::span<const TransferOp> recvs, const Lane& lane);
  void wait_for_readers(std::span<const TransferOp> sends, const Lane& lane);
  void give_up(const Error& error, std::span<const TransferOp> sends, const Lane& lane);
  [[noreturn]] void report_difference(int source, const std::string& what);

  std::shared_ptr<Shared> shared_;
  int rank_;
  std::atomic<bool> frames_busy_ = false, data_busy_ = false;
  std::uint64_t frame_rounds_ = 0;
  std::vector<std::size_t> cursors_;       // per peer, into its sends
  std::vector<TransferOp> sends_, recvs_;  // of a gather
};

std::vector<std::string> InProcessGroup::all_gather_frames(std::string frame, Deadline deadline) {
  const OneThread claim(frames_busy_, *this);
  const std::size_t slot = ++frame_rounds_ & 1;
  self().frames[slot] = std::move(frame);
  shared_->rendezvous.meet(Channel::frames, rank_, Call::frames, deadline);
  std::vector<std::string> frames;
  frames.reserve(shared_->members.size());
  for (const Member& member : shared_->members) frames.push_back(member.frames[slot]);
  return frames;
}

void InProcessGroup::all_gather(std::span<const GatherOp> ops, const Lane& lane, const TransferBounds& bounds) {
  const OneThread claim(data_busy_, *this);
  unfold_gathers(ops, rank_, size(), sends_, recvs_);
  transfer(lane.device ? Call::gather_cuda : Call::gather_host, sends_, recvs_, lane, bounds);
}

Member::Events& InProcessGroup::events_on(const Lane& lane) {
  for (const auto& events : self().events)
    if (events->device == lane.device) return *events;
  auto made = std::make_unique<Member::Events>();
  made->device = lane.device;
  made->ready = lane.device->create_event();
  made->copied = lane.device->create_event();
  self().events.push_back(std::move(made));
  return *self().events.back();
}

void InProcessGroup::transfer(Call call, std::span<const TransferOp> sends, std::span<const TransferOp> recvs,
                              const Lane& lane, const TransferBounds& bounds) {
  check_peers(sends, size());
  check_peers(recvs, size());
  Rendezvous& rendezvous = shared_->rendezvous;
  self().sends = sends;
  try {
    if (lane.device) {
      self().ready = events_on(lane).ready.get();
      lane.device->record(self().ready, lane.stream.handle);
    }
    rendezvous.meet(Channel::data, rank_, call, deadline_in(bounds.start_s));
    const Deadline deadline = deadline_in(bounds.run_s);
    {
      const Rendezvous::Reading reading(rendezvous, rank_);
      check_sides(recvs);
      pull(recvs, lane);
    }
    rendezvous.meet(Channel::data, rank_, Call::finish, deadline);
    wait_for_readers(sends, lane);
  } catch (const Error& error) {
    give_up(error, sends, lane);
    throw;
  } catch (const std::exception& error) {
    give_up(Error(ErrorCode::internal, error.what(), ErrorScope::communicator), sends, lane);
    throw;
  }
}

void InProcessGroup::give_up(const Error& error, std::span<const TransferOp> sends, const Lane& lane) {
  shared_->rendezvous.fail(rank_, error);  // no effect if this is the pending failure itself
  // Peers may read this rank's memory until they see the failure; the caller may free it after the throw.
  shared_->rendezvous.settle();
  try {
    wait_for_readers(sends, lane);
  } catch (const Error&) {
    // The device is lost: nothing reads any more, and the first error is the one that counts.
  }
}

void InProcessGroup::report_difference(int source, const std::string& what) {
  const Error error = transfer_differs(name(), source, rank_, what);
  shared_->rendezvous.fail_everywhere(error);
  shared_->rendezvous.check(rank_);  // throws what was recorded first, as every rank will
  throw error;
}

template <class Body>
void InProcessGroup::for_each_match(std::span<const TransferOp> recvs, const Body& body) {
  std::fill(cursors_.begin(), cursors_.end(), 0);
  for (const TransferOp& recv : recvs) {
    if (recv.rows.bytes() == 0) continue;
    Member& source = shared_->members[static_cast<std::size_t>(recv.peer)];
    std::size_t& cursor = cursors_[static_cast<std::size_t>(recv.peer)];
    while (cursor < source.sends.size() &&
           (source.sends[cursor].peer != rank_ || source.sends[cursor].rows.bytes() == 0))
      ++cursor;
    body(source, recv, cursor < source.sends.size() ? &source.sends[cursor++] : nullptr);
  }
}

void InProcessGroup::check_sides(std::span<const TransferOp> recvs) {
  for_each_match(recvs, [this](Member&, const TransferOp& recv, const TransferOp* send) {
    const RowShape expected = shape_of(recv.rows), sent = send ? shape_of(send->rows) : RowShape{};
    if (const std::string what = sides_differ(send ? &sent : nullptr, &expected); !what.empty())
      report_difference(recv.peer, what);
  });
  for (int peer = 0; peer < size(); ++peer) {
    const auto& sends = shared_->members[static_cast<std::size_t>(peer)].sends;
    for (std::size_t i = cursors_[static_cast<std::size_t>(peer)]; i < sends.size(); ++i)
      if (const RowShape sent = shape_of(sends[i].rows); sends[i].peer == rank_ && sent.bytes() > 0)
        report_difference(peer, sides_differ(&sent, nullptr));
  }
}

void InProcessGroup::pull(std::span<const TransferOp> recvs, const Lane& lane) {
  if (!lane.device) {
    for_each_match(recvs, [](Member&, const TransferOp& recv, const TransferOp* send) {
      copy_on_host(recv.rows, send->rows);
    });
    return;
  }
  void* const stream = lane.stream.handle;
  void* const copied = events_on(lane).copied.get();
  void* last = nullptr;
  // Recorded after a failure too: copies enqueued before it still read the peers' memory.
  const auto mark = [&] {
    if (last) lane.device->record(copied, stream);
    self().copied = last ? copied : nullptr;
  };
  try {
    for_each_match(recvs, [&](Member& source, const TransferOp& recv, const TransferOp* send) {
      if (source.ready != last) lane.device->wait(stream, source.ready);
      last = source.ready;
      copy_on_device(*lane.device, stream, recv.rows, send->rows);
    });
  } catch (const Error&) {
    mark();
    throw;
  }
  mark();
}

/// Later work on this rank's stream comes after its peers' copies out of this rank's memory.
void InProcessGroup::wait_for_readers(std::span<const TransferOp> sends, const Lane& lane) {
  if (!lane.device) return;
  std::fill(cursors_.begin(), cursors_.end(), 0);
  for (const TransferOp& send : sends) {
    if (send.rows.bytes() == 0 || send.peer == rank_) continue;
    std::size_t& seen = cursors_[static_cast<std::size_t>(send.peer)];
    void* const copied = shared_->members[static_cast<std::size_t>(send.peer)].copied;
    if (seen++ == 0 && copied) lane.device->wait(lane.stream.handle, copied);
  }
}

}  // namespace

std::vector<std::shared_ptr<Group>> make_in_process_groups(std::string name, std::vector<std::string> hosts) {
  const int size = static_cast<int>(hosts.size());
  auto shared = std::make_shared<Shared>(std::move(name), std::move(hosts));
  std::vector<std::shared_ptr<Group>> groups;
  groups.reserve(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_shared<InProcessGroup>(shared, rank));
  return groups;
}

}  // namespace bdcp::comm
