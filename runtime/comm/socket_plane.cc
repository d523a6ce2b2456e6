#include "comm/socket_plane.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "comm/bytes.h"
#include "comm/row_copy.h"

namespace bdcp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kHeader = 16;  // number of the transfer, bytes that follow

StridedRows packed_like(const StridedRows& rows, std::byte* data) {
  return {data, rows.rows, rows.heads, rows.head_bytes, rows.heads * rows.head_bytes, rows.head_bytes};
}

/// The operations of one direction with one peer, byte by byte.
class RowStream {
 public:
  void push(const StridedRows& rows) { ops_.push_back(rows); }
  void clear() { ops_.clear(), begun_ = false; }
  bool idle() const { return ops_.empty(); }
  std::int64_t left() const {
    std::int64_t sum = 0;
    for (const StridedRows& rows : ops_) sum += rows.bytes();
    return sum - (begun_ ? static_cast<std::int64_t>(done_) : 0);
  }

 protected:
  /// Where the first operation's bytes are, or go.
  std::byte* memory() {
    const StridedRows& rows = ops_.front();
    return rows.contiguous() ? rows.data : staging_.data();
  }
  void begin() {
    begun_ = true;
    header_done_ = done_ = 0;
    if (!ops_.front().contiguous()) staging_.resize(static_cast<std::size_t>(ops_.front().bytes()));
  }
  std::size_t bytes() const { return static_cast<std::size_t>(ops_.front().bytes()); }
  void end() {
    begun_ = false;
    ops_.pop_front();
  }

  std::deque<StridedRows> ops_;
  std::vector<std::byte> staging_;  // rows with gaps
  bool begun_ = false;
  std::size_t header_done_ = 0, done_ = 0;
  std::string header_;
};

class Sending final : public RowStream {
 public:
  /// What the socket takes now.
  Moved step(int fd, std::uint64_t number) {
    while (!ops_.empty()) {
      if (!begun_) {
        begin();
        if (!ops_.front().contiguous()) copy_on_host(packed_like(ops_.front(), staging_.data()), ops_.front());
        header_.clear();
        put(header_, number);
        put(header_, static_cast<std::uint64_t>(bytes()));
      }
      if (header_done_ < kHeader) {
        Moved moved = write_some(fd, header_.data() + header_done_, kHeader - header_done_);
        header_done_ += moved.bytes;
        if (moved.closed || header_done_ < kHeader) return moved;
      }
      Moved moved = write_some(fd, memory() + done_, bytes() - done_);
      done_ += moved.bytes;
      if (moved.closed || done_ < bytes()) return moved;
      end();
    }
    return {};
  }
};

class Receiving final : public RowStream {
 public:
  /// `error` of the result also tells of bytes that cannot be.
  Moved step(int fd, std::uint64_t number) {
    while (!ops_.empty()) {
      if (!begun_) {
        begin();
        header_.assign(kHeader, '\0');
      }
      if (header_done_ < kHeader) {
        Moved moved = read_some(fd, header_.data() + header_done_, kHeader - header_done_);
        header_done_ += moved.bytes;
        if (moved.closed || header_done_ < kHeader) return moved;
        Reader reader(header_);
        const auto theirs = reader.number<std::uint64_t>(), size = reader.number<std::uint64_t>();
        if (theirs != number || size != bytes())
          return {0, true,
                  fmt::format("transfer {} of {} bytes came, {} of {} was expected", theirs, size, number,
                              bytes())};
      }
      Moved moved = read_some(fd, memory() + done_, bytes() - done_);
      done_ += moved.bytes;
      if (moved.closed || done_ < bytes()) return moved;
      if (!ops_.front().contiguous()) copy_on_host(ops_.front(), packed_like(ops_.front(), staging_.data()));
      end();
    }
    return {};
  }
};

struct Peer {
  Fd fd;
  Sending out;
  Receiving in;
};

class SocketPlane final : public DataPlane {
 public:
  explicit SocketPlane(ControlChannel& channel) : channel_(channel) {}
  void transfer(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane& lane,
                Call call, Deadline deadline) override;

 private:
  void copy_own(std::span<const TransferOp> sends, std::span<const TransferOp> recvs) const;
  void connect(Deadline deadline);
  void pump(Call call, Deadline deadline);
  [[noreturn]] void broken(int peer, Call call, const std::string& why);
  [[noreturn]] void late(int peer, Call call, Deadline start);

  ControlChannel& channel_;
  std::map<int, Peer> peers_;
  std::uint64_t number_ = 0;
};

void SocketPlane::copy_own(std::span<const TransferOp> sends, std::span<const TransferOp> recvs) const {
  const int own = channel_.membership().rank;
  auto send = sends.begin();
  for (const TransferOp& recv : recvs) {
    if (recv.peer != own || recv.rows.bytes() == 0) continue;
    while (send != sends.end() && (send->peer != own || send->rows.bytes() == 0)) ++send;
    if (send == sends.end()) return;  // the sides were checked
    copy_on_host(recv.rows, (send++)->rows);
  }
}

void SocketPlane::transfer(std::span<const TransferOp> sends, std::span<const TransferOp> recvs, const Lane&,
                           Call call, Deadline deadline) {
  ++number_;
  for (auto& [rank, peer] : peers_) peer.out.clear(), peer.in.clear();
  const int own = channel_.membership().rank;
  for (const TransferOp& op : sends)
    if (op.peer != own && op.rows.bytes() > 0) peers_[op.peer].out.push(op.rows);
  for (const TransferOp& op : recvs)
    if (op.peer != own && op.rows.bytes() > 0) peers_[op.peer].in.push(op.rows);
  copy_own(sends, recvs);
  connect(deadline);
  pump(call, deadline);
}

/// Lower ranks first, which only their control thread has to answer: no two ranks wait for each other's
/// callers.
void SocketPlane::connect(Deadline deadline) {
  for (auto& [rank, peer] : peers_)
    if (!peer.fd && !(peer.out.idle() && peer.in.idle())) peer.fd = channel_.data_link(rank, deadline);
}

void SocketPlane::pump(Call call, Deadline deadline) {
  const Deadline start = Clock::now();
  std::vector<pollfd> polled;
  std::vector<std::pair<int, Peer*>> busy;
  for (;;) {
    polled.assign(1, {channel_.failure_fd(), POLLIN, 0});
    busy.clear();
    for (auto& [rank, peer] : peers_) {
      const short events = static_cast<short>((peer.out.idle() ? 0 : POLLOUT) | (peer.in.idle() ? 0 : POLLIN));
      if (events == 0) continue;
      polled.push_back({peer.fd.get(), events, 0});
      busy.emplace_back(rank, &peer);
    }
    if (busy.empty()) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int count =
        poll(polled.data(), polled.size(), static_cast<int>(std::clamp<long long>(left, 0, 1000000)));
    if (count < 0 && errno != EINTR) throw Error(ErrorCode::io_error, std::strerror(errno)).with_call("poll");
    channel_.check();
    if (count == 0 && left <= 0) late(busy.front().first, call, start);
    for (std::size_t i = 0; i < busy.size() && count > 0; ++i) {
      const auto& [rank, peer] = busy[i];
      const short events = polled[i + 1].revents;
      Moved moved;
      if (events & (POLLIN | POLLHUP | POLLERR)) moved = peer->in.step(peer->fd.get(), number_);
      if (!moved.closed && (events & (POLLOUT | POLLHUP | POLLERR)))
        moved = peer->out.step(peer->fd.get(), number_);
      if (moved.closed) broken(rank, call, moved.error.empty() ? "it was closed" : moved.error);
    }
  }
}

/// The control channel knows better why, and is about to say so.
void SocketPlane::broken(int peer, Call call, const std::string& why) {
  const double patience = ControlRouter::kLostHeartbeats * channel_.heartbeat();
  (void)wait_until_ready(-1, 0, deadline_in(std::min(patience, 2.0)), channel_.failure_fd());
  channel_.check();
  channel_.fail(peer, Error(ErrorCode::peer_failed,
                            fmt::format("its data connection with rank {} broke in the {}: {}",
                                        channel_.membership().rank, to_string(call), why),
                            ErrorScope::communicator));
  channel_.check();
  throw Error(ErrorCode::internal, "a recorded failure is gone");
}

void SocketPlane::late(int peer, Call call, Deadline start) {
  const Peer& behind = peers_.at(peer);
  Error error(
      ErrorCode::timeout,
      fmt::format("group '{}': the {} did not end within {:.3g} s: between ranks {} and {}, {} bytes have not "
                  "come and {} were not taken",
                  channel_.membership().name, to_string(call),
                  std::chrono::duration<double>(Clock::now() - start).count(), channel_.membership().rank, peer,
                  behind.in.left(), behind.out.left()),
      ErrorScope::communicator);
  channel_.fail_everywhere(error.with_origin(peer));
  channel_.check();
  throw error;
}

}  // namespace

std::unique_ptr<DataPlane> make_socket_plane(ControlChannel& channel) {
  return std::make_unique<SocketPlane>(channel);
}

}  // namespace bdcp::comm
