#include "bdcp/doc_layout.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <unordered_set>

#include "base/check.h"

namespace bdcp {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

template <class Make>
void check(bool ok, Make&& make, SourceLocation where = SourceLocation::current()) {
  require(ok, ErrorCode::invalid_layout, std::forward<Make>(make), where);
}

template <class Int>
std::vector<std::int64_t> offsets_from_lengths(std::span<const Int> lengths) {
  std::vector<std::int64_t> cu;
  cu.reserve(lengths.size() + 1);
  cu.push_back(0);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = lengths[i];
    check(length >= 0, [&] { return fmt::format("lengths[{}] is {}; allowed: 0 or more tokens", i, length); });
    check(length <= kMaxTokens - sum, [&] {
      return fmt::format("lengths[{}] is {}, which brings the sum above {}; allowed: at most {} tokens in all",
                         i, length, kMaxTokens, kMaxTokens);
    });
    sum += length;
    if (length > 0) cu.push_back(sum);
  }
  return cu;
}

template <class Int>
void check_offsets(std::span<const Int> cu, const char* name) {
  check(!cu.empty(), [&] { return fmt::format("{} is empty; allowed: offsets that start with 0", name); });
  check(cu[0] == 0, [&] { return fmt::format("{}[0] is {}; allowed: 0", name, cu[0]); });
  for (std::size_t i = 1; i < cu.size(); ++i) {
    check(cu[i] >= cu[i - 1], [&] {
      return fmt::format("{}[{}] is {}, less than {}[{}] = {}; allowed: offsets that never decrease", name, i,
                         cu[i], name, i - 1, cu[i - 1]);
    });
    check(static_cast<std::int64_t>(cu[i]) <= kMaxTokens, [&] {
      return fmt::format("{}[{}] is {}; allowed: at most {} tokens in all", name, i, cu[i], kMaxTokens);
    });
  }
}

struct Offsets {
  std::vector<std::int64_t> q, k;
};

template <class Int>
Offsets rectangular_offsets(std::span<const Int> q, std::span<const Int> k, const LayoutOptions& options) {
  check_offsets(q, "cu_seqlens_q");
  check_offsets(k, "cu_seqlens_k");
  check(q.size() == k.size(), [&] {
    return fmt::format(
        "cu_seqlens_k has {} entries and cu_seqlens_q has {}; allowed: the same number of documents", k.size(),
        q.size());
  });
  Offsets out{{0}, {0}};
  bool square = true;
  for (std::size_t i = 1; i < q.size(); ++i) {
    square = square && q[i] == k[i];
    if (q[i] == q[i - 1] && k[i] == k[i - 1]) continue;
    out.q.push_back(q[i]);
    out.k.push_back(k[i]);
  }
  if (square) out.k.clear();
  require(square || options.world_size == 1, ErrorCode::unsupported, [&] {
    return fmt::format(
        "a rectangular layout (cu_seqlens_k differs from cu_seqlens_q) cannot be sharded: world_size is {}; "
        "allowed: 1",
        options.world_size);
  });
  return out;
}

/// The message for a 0 at `position` that some document follows.
template <class Int>
std::string padding_message(std::span<const Int> ids, std::size_t position, std::size_t later) {
  return fmt::format("doc_ids[{}] is 0 (padding) but doc_ids[{}] is {}: {} padding; allowed: padding as a tail",
                     position, later, ids[later], position == 0 ? "leading" : "interior");
}

/// Offsets of the documents; what follows the last one is the padding tail.
template <class Int>
std::vector<std::int64_t> offsets_from_ids(std::span<const Int> ids) {
  check(ids.size() <= static_cast<std::size_t>(kMaxTokens), [&] {
    return fmt::format("doc_ids has {} entries; allowed: at most {} tokens in all", ids.size(), kMaxTokens);
  });
  std::vector<std::int64_t> cu{0};
  // Ids usually rise, so that a later one is new by comparison; the set is for the other inputs.
  std::vector<Int> rising;
  std::unordered_set<Int> seen;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Int id = ids[i];
    if (i > 0 && id == ids[i - 1]) continue;
    check(id >= 0, [&] {
      return fmt::format("doc_ids[{}] is {}; allowed: 0 (padding) or a positive document id", i, id);
    });
    if (i > 0) cu.push_back(static_cast<std::int64_t>(i));
    if (id == 0) {
      const auto later = std::find_if(ids.begin() + i, ids.end(), [](Int value) { return value != 0; });
      check(later == ids.end(), [&] { return padding_message(ids, i, later - ids.begin()); });
      return cu;
    }
    if (seen.empty() && (rising.empty() || id > rising.back())) {
      rising.push_back(id);
      continue;
    }
    if (seen.empty()) seen.insert(rising.begin(), rising.end());
    check(seen.insert(id).second, [&] {
      return fmt::format(
          "doc_ids[{}] is {}, which already ended before position {}; allowed: one run per document", i, id, i);
    });
  }
  if (!ids.empty()) cu.push_back(static_cast<std::int64_t>(ids.size()));
  return cu;
}

}  // namespace

void DocLayout::finish(const Options& options) {
  check(options.world_size >= 1 && options.world_size <= kMaxWorldSize,
        [&] { return fmt::format("world_size is {}; allowed: 1 to {}", options.world_size, kMaxWorldSize); });
  check(options.padding_tokens >= 0,
        [&] { return fmt::format("padding_tokens is {}; allowed: 0 or more tokens", options.padding_tokens); });
  world_size_ = options.world_size;
  square_ = cu_k_.empty();
  const std::int64_t longest = std::max(real_tokens(), real_keys());
  check(options.padding_tokens <= kMaxTokens - longest, [&] {
    return fmt::format("padding_tokens is {} after {} real tokens; allowed: at most {} tokens in all",
                       options.padding_tokens, longest, kMaxTokens);
  });
  tokens_ = real_tokens() + options.padding_tokens;
  const std::int64_t unit = world_size_ == 1 ? 1 : 2 * std::int64_t{world_size_};
  padded_ = (tokens_ + unit - 1) / unit * unit;
  check(padded_ <= kMaxTokens, [&] {
    return fmt::format("{} tokens padded to a multiple of 2 * world_size = {} are {}; allowed: at most {}",
                       tokens_, unit, padded_, kMaxTokens);
  });

  static_assert(std::endian::native == std::endian::little, "equal layouts hash equally on every machine");
  const std::int64_t head[] = {world_size_, tokens_, padded_, square_ ? 1 : 0,
                               static_cast<std::int64_t>(cu_q_.size())};
  const std::uint64_t q = XXH3_64bits(cu_q_.data(), cu_q_.size() * sizeof(cu_q_[0]));
  const std::uint64_t k = square_ ? q : XXH3_64bits(cu_k_.data(), cu_k_.size() * sizeof(cu_k_[0]));
  const std::uint64_t parts[] = {XXH3_64bits(head, sizeof(head)), q, k};
  hash_ = XXH3_64bits(parts, sizeof(parts));
}

DocLayout DocLayout::from_lengths(std::span<const std::int64_t> lengths, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = offsets_from_lengths(lengths);
  layout.finish(options);
  return layout;
}

DocLayout DocLayout::from_lengths(std::span<const std::int32_t> lengths, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = offsets_from_lengths(lengths);
  layout.finish(options);
  return layout;
}

namespace {

template <class Int>
std::vector<std::int64_t> square_offsets(std::span<const Int> cu) {
  check_offsets(cu, "cu_seqlens");
  std::vector<std::int64_t> out(cu.begin(), cu.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

DocLayout DocLayout::from_cu_seqlens(std::span<const std::int64_t> cu_seqlens, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = square_offsets(cu_seqlens);
  layout.finish(options);
  return layout;
}

DocLayout DocLayout::from_cu_seqlens(std::span<const std::int32_t> cu_seqlens, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = square_offsets(cu_seqlens);
  layout.finish(options);
  return layout;
}

DocLayout DocLayout::from_cu_seqlens(std::span<const std::int64_t> cu_seqlens_q,
                                     std::span<const std::int64_t> cu_seqlens_k, const Options& options) {
  Offsets offsets = rectangular_offsets(cu_seqlens_q, cu_seqlens_k, options);
  DocLayout layout;
  layout.cu_q_ = std::move(offsets.q);
  layout.cu_k_ = std::move(offsets.k);
  layout.finish(options);
  return layout;
}

DocLayout DocLayout::from_cu_seqlens(std::span<const std::int32_t> cu_seqlens_q,
                                     std::span<const std::int32_t> cu_seqlens_k, const Options& options) {
  Offsets offsets = rectangular_offsets(cu_seqlens_q, cu_seqlens_k, options);
  DocLayout layout;
  layout.cu_q_ = std::move(offsets.q);
  layout.cu_k_ = std::move(offsets.k);
  layout.finish(options);
  return layout;
}

namespace {

template <class Int>
LayoutOptions with_tail(std::span<const Int> ids, std::int64_t real, const LayoutOptions& options) {
  LayoutOptions out = options;
  // A negative or huge padding_tokens is left for finish() to name.
  if (out.padding_tokens >= 0 && out.padding_tokens <= kMaxTokens) {
    out.padding_tokens += static_cast<std::int64_t>(ids.size()) - real;
  }
  return out;
}

}  // namespace

DocLayout DocLayout::from_doc_ids(std::span<const std::int64_t> doc_ids, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = offsets_from_ids(doc_ids);
  layout.finish(with_tail(doc_ids, layout.real_tokens(), options));
  return layout;
}

DocLayout DocLayout::from_doc_ids(std::span<const std::int32_t> doc_ids, const Options& options) {
  DocLayout layout;
  layout.cu_q_ = offsets_from_ids(doc_ids);
  layout.finish(with_tail(doc_ids, layout.real_tokens(), options));
  return layout;
}

std::vector<std::int64_t> DocLayout::packed_cu_seqlens() const {
  std::vector<std::int64_t> out = cu_q_;
  if (!square_) out.erase(std::unique(out.begin(), out.end()), out.end());  // documents without queries
  if (padded_ > out.back()) out.push_back(padded_);
  return out;
}

std::vector<std::int64_t> DocLayout::doc_ids() const {
  require(square_, ErrorCode::unsupported,
          "doc_ids() of a rectangular layout: one id per token needs as many keys as queries in each document");
  std::vector<std::int64_t> ids(static_cast<std::size_t>(padded_), 0);
  for (std::int64_t document = 0; document < documents(); ++document) {
    std::fill(ids.begin() + cu_q_[document], ids.begin() + cu_q_[document + 1], document + 1);
  }
  return ids;
}

}  // namespace bdcp
