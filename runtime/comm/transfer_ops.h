// What kinds of groups check and unfold alike before they move rows.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"

namespace bdcp::comm {

/// Throws Error(invalid_argument).
void check_peers(std::span<const TransferOp> ops, int size);
/// Gathers as the transfers they consist of, own rows included unless they lie in place. Throws
/// Error(invalid_argument).
void unfold_gathers(std::span<const GatherOp> ops, int rank, int size, std::vector<TransferOp>& sends,
                    std::vector<TransferOp>& recvs);

/// "8 rows of 1 x 4 bytes are sent, 9 rows of 1 x 4 are expected", or empty if the sides match.
struct RowShape {
  std::int64_t rows = 0, heads = 0, head_bytes = 0;
  std::int64_t bytes() const { return rows * heads * head_bytes; }
  friend bool operator==(const RowShape&, const RowShape&) = default;
};
RowShape shape_of(const StridedRows& rows);
/// Either may be null: the other side has nothing that belongs to it.
std::string sides_differ(const RowShape* sent, const RowShape* expected);
Error transfer_differs(const std::string& group, int source, int destination, const std::string& what);

/// One rank's side of a transfer, for the others to check.
std::string encode_sides(std::span<const TransferOp> sends, std::span<const TransferOp> recvs);
/// The same for gathers, whose sides are all alike: a few bytes, whatever the number of ranks.
std::string encode_gathers(std::span<const GatherOp> ops);
std::optional<Error> check_gathers(const std::string& group, std::span<const std::string> by_rank);
/// The first pair of sides that do not match, the same on every rank that holds the same encodings.
std::optional<Error> check_sides(const std::string& group, std::span<const std::string> by_rank);

}  // namespace bdcp::comm
