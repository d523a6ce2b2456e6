#include "comm/transfer_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/bytes.h"
#include "comm/one_thread.h"

namespace bdcp::comm {

namespace {

void put_shape(std::string& out, const RowShape& shape) {
  put(out, static_cast<std::uint64_t>(shape.rows));
  put(out, static_cast<std::uint64_t>(shape.heads));
  put(out, static_cast<std::uint64_t>(shape.head_bytes));
}

RowShape take_shape(Reader& reader) {
  RowShape shape;
  shape.rows = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  shape.heads = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  shape.head_bytes = static_cast<std::int64_t>(reader.number<std::uint64_t>());
  return shape;
}

}  // namespace

OneThread::OneThread(std::atomic<bool>& busy, const Group& group) : busy_(busy) {
  group.check();  // first: after a fork nothing else can be trusted
  if (busy_.exchange(true, std::memory_order_acquire))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("group '{}': two threads of rank {} issue collectives at the same time; one at a "
                            "time is allowed",
                            group.name(), group.rank()));
}

void check_peers(std::span<const TransferOp> ops, int size) {
  for (const TransferOp& op : ops)
    if (op.peer < 0 || op.peer >= size)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("exchange: peer is {}; allowed are ranks 0 to {}", op.peer, size - 1));
}

void unfold_gathers(std::span<const GatherOp> ops, int rank, int size, std::vector<TransferOp>& sends,
                    std::vector<TransferOp>& recvs) {
  sends.clear();
  recvs.clear();
  for (const GatherOp& op : ops) {
    const std::int64_t rows = op.own.rows;
    if (op.all.rows != rows * size || op.all.heads != op.own.heads || op.all.head_bytes != op.own.head_bytes)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("all_gather: destination is {} rows of {} x {} bytes; allowed are {} rows of {} x {}",
                      op.all.rows, op.all.heads, op.all.head_bytes, rows * size, op.own.heads,
                      op.own.head_bytes));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank && op.all.slice(peer * rows, rows).data == op.own.data) continue;
      sends.push_back({peer, op.own});
      recvs.push_back({peer, op.all.slice(peer * rows, rows)});
    }
  }
}

RowShape shape_of(const StridedRows& rows) { return {rows.rows, rows.heads, rows.head_bytes}; }

std::string sides_differ(const RowShape* sent, const RowShape* expected) {
  if (!sent) return fmt::format("{} bytes are expected that the source does not send", expected->bytes());
  if (!expected) return fmt::format("{} bytes are sent that nobody expects", sent->bytes());
  if (*sent == *expected) return {};
  return fmt::format("{} rows of {} x {} bytes are sent, {} rows of {} x {} are expected", sent->rows,
                     sent->heads, sent->head_bytes, expected->rows, expected->heads, expected->head_bytes);
}

Error transfer_differs(const std::string& group, int source, int destination, const std::string& what) {
  return Error(
      ErrorCode::divergence,
      fmt::format("group '{}': transfer from rank {} to rank {}: {}", group, source, destination, what),
      ErrorScope::communicator);
}

std::string encode_gathers(std::span<const GatherOp> ops) {
  std::string out;
  for (const GatherOp& op : ops) put_shape(out, shape_of(op.own));
  return out;
}

std::optional<Error> check_gathers(const std::string& group, std::span<const std::string> by_rank) {
  for (std::size_t r = 1; r < by_rank.size(); ++r) {
    if (by_rank[r] == by_rank[0]) continue;
    Reader own(by_rank[0]), theirs(by_rank[r]);
    while (own.ok() && theirs.ok()) {
      const bool sent = theirs.left() > 0, expected = own.left() > 0;
      const RowShape from = sent ? take_shape(theirs) : RowShape{},
                     to = expected ? take_shape(own) : RowShape{};
      if (!sent && !expected) break;
      const std::string what = sides_differ(sent ? &from : nullptr, expected ? &to : nullptr);
      if (!what.empty()) return transfer_differs(group, static_cast<int>(r), 0, what);
    }
  }
  return std::nullopt;
}

std::string encode_sides(std::span<const TransferOp> sends, std::span<const TransferOp> recvs) {
  std::string out;
  for (const std::uint8_t receives : {0, 1})
    for (const TransferOp& op : receives ? recvs : sends) {
      if (op.rows.bytes() == 0) continue;
      put(out, receives);
      put(out, static_cast<std::uint32_t>(op.peer));
      put_shape(out, shape_of(op.rows));
    }
  return out;
}

std::optional<Error> check_sides(const std::string& group, std::span<const std::string> by_rank) {
  struct Sides {
    std::vector<RowShape> sent, expected;
  };
  std::map<std::pair<int, int>, Sides> pairs;  // source, destination
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const int rank = static_cast<int>(r);
    Reader reader(by_rank[r]);
    while (reader.ok() && reader.left() > 0) {
      const bool receives = reader.number<std::uint8_t>() != 0;
      const int peer = static_cast<int>(reader.number<std::uint32_t>());
      const RowShape shape = take_shape(reader);
      if (receives) {
        pairs[{peer, rank}].expected.push_back(shape);
      } else {
        pairs[{rank, peer}].sent.push_back(shape);
      }
    }
    if (!reader.ok())
      return Error(ErrorCode::divergence,
                   fmt::format("group '{}': rank {} lists a malformed transfer", group, rank),
                   ErrorScope::communicator)
          .with_origin(rank);
  }
  for (const auto& [ranks, sides] : pairs)
    for (std::size_t i = 0; i < std::max(sides.sent.size(), sides.expected.size()); ++i) {
      const RowShape* sent = i < sides.sent.size() ? &sides.sent[i] : nullptr;
      const RowShape* expected = i < sides.expected.size() ? &sides.expected[i] : nullptr;
      if (const std::string what = sides_differ(sent, expected); !what.empty())
        return transfer_differs(group, ranks.first, ranks.second, what);
    }
  return std::nullopt;
}

}  // namespace bdcp::comm
