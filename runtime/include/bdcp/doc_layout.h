// The documents of one packed sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace bdcp {

/// Ranks a layout may be sharded over: the edges of one document over all of them still fit in memory.
inline constexpr int kMaxWorldSize = 8192;

struct LayoutOptions {
  int world_size = 1;  ///< 1 to kMaxWorldSize; world > 1 pads the tokens to a multiple of 2 * world_size
  /// Trailing padding the caller's tensors already hold (rectangular: query and key tensors alike).
  std::int64_t padding_tokens = 0;
};

/// A validated description of packed documents: row i may attend column j iff both belong to the same document
/// and j <= i (bottom-right aligned where a document has different query and key lengths). Immutable value.
/// Every factory throws Error(invalid_layout) naming the position and what is allowed there. At most 2^31 - 1
/// tokens.
class DocLayout {
 public:
  using Options = LayoutOptions;

  /// Token counts in order, each >= 0; a length of 0 gives no rows.
  static DocLayout from_lengths(std::span<const std::int64_t> lengths, const Options& options = {});
  static DocLayout from_lengths(std::span<const std::int32_t> lengths, const Options& options = {});
  /// Offsets 0 = c[0] <= c[1] <= ...; padding past c.back() comes from options.padding_tokens.
  static DocLayout from_cu_seqlens(std::span<const std::int64_t> cu_seqlens, const Options& options = {});
  static DocLayout from_cu_seqlens(std::span<const std::int32_t> cu_seqlens, const Options& options = {});
  /// Rectangular: query and key offsets of the same number of documents. World size 1 only (unsupported
  /// otherwise).
  static DocLayout from_cu_seqlens(std::span<const std::int64_t> cu_seqlens_q,
                                   std::span<const std::int64_t> cu_seqlens_k, const Options& options = {});
  static DocLayout from_cu_seqlens(std::span<const std::int32_t> cu_seqlens_q,
                                   std::span<const std::int32_t> cu_seqlens_k, const Options& options = {});
  /// One id >= 0 per token; 0 is padding and only allowed as a tail; an id may not come back after another one.
  static DocLayout from_doc_ids(std::span<const std::int64_t> doc_ids, const Options& options = {});
  static DocLayout from_doc_ids(std::span<const std::int32_t> doc_ids, const Options& options = {});

  int world_size() const { return world_size_; }
  bool square() const { return square_; }
  /// Documents that have at least one query or key; documents without either are dropped.
  std::int64_t documents() const { return static_cast<std::int64_t>(cu_q_.size()) - 1; }
  /// Real tokens (query side).
  std::int64_t real_tokens() const { return cu_q_.back(); }
  std::int64_t real_keys() const { return cu_k().back(); }
  /// Keys of the caller's K/V tensors: tokens() unless rectangular.
  std::int64_t key_tokens() const { return real_keys() + tokens_ - real_tokens(); }
  /// Tokens of the caller's tensors before sharding: real plus given padding.
  std::int64_t tokens() const { return tokens_; }
  /// tokens() padded to a multiple of 2 * world_size (world 1: unchanged).
  std::int64_t padded_tokens() const { return padded_; }
  std::int64_t local_tokens() const { return padded_ / world_size_; }
  /// Offsets of the documents with rows, strictly increasing in q or in k. cu_q() == cu_k() iff square().
  std::span<const std::int64_t> cu_q() const { return cu_q_; }
  std::span<const std::int64_t> cu_k() const { return square_ ? cu_q_ : cu_k_; }
  /// Boundaries for recurrent layers: the padding tail (of padded_tokens) counts as one last segment.
  std::vector<std::int64_t> packed_cu_seqlens() const;
  /// One id per padded token: 1-based documents, 0 for padding. Square layouts only.
  std::vector<std::int64_t> doc_ids() const;
  /// Content hash of everything above; equal layouts have equal hashes on every machine.
  std::uint64_t hash() const { return hash_; }

 private:
  DocLayout() = default;
  void finish(const Options& options);
  int world_size_ = 1;
  bool square_ = true;
  std::int64_t tokens_ = 0, padded_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<std::int64_t> cu_q_{0}, cu_k_;  // cu_k_ is empty where it equals cu_q_
};

}  // namespace bdcp
