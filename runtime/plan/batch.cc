// Sharding a whole batch: resolve document ids, validate everything, then build.
#include "bdcp/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "bdcp/doc_layout.h"
#include "plan/host_tensor.h"

namespace bdcp {
namespace {

constexpr const char* kIds = "input_ids";
constexpr const char* kEmbeds = "inputs_embeds";
constexpr const char* kMask = "attention_mask";
constexpr const char* kPackedIds = "_packed_seq_ids";
constexpr const char* kPaddingMask = "padding_mask";
constexpr const char* kVisualMask = "visual_pos_masks";

template <class Make>
void check(bool ok, Make&& make, SourceLocation where = SourceLocation::current()) {
  require(ok, ErrorCode::invalid_argument, std::forward<Make>(make), where);
}

std::string shape_text(const HostTensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape, ", ")); }

const HostTensor* find(const Batch& batch, const std::string& name) {
  const auto found = batch.find(name);
  return found == batch.end() ? nullptr : &found->second;
}

template <class Int>
std::vector<std::int64_t> widened(const HostTensor& tensor) {
  std::vector<Int> values(static_cast<std::size_t>(tensor.elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return {values.begin(), values.end()};
}

std::vector<std::int64_t> integers(const HostTensor& tensor, const std::string& name) {
  plan::validate(tensor, name);
  switch (tensor.type) {
    case ElementType::i32:
      return widened<std::int32_t>(tensor);
    case ElementType::i64:
      return widened<std::int64_t>(tensor);
    case ElementType::boolean:
      return widened<std::uint8_t>(tensor);
    default:
      throw Error(ErrorCode::invalid_argument, name + " has floating elements; allowed: integers or booleans");
  }
}

/// The one primary tensor; its first two dimensions are [sequences, tokens].
const HostTensor& primary_of(const Batch& batch) {
  const HostTensor *ids = find(batch, kIds), *embeds = find(batch, kEmbeds);
  check((ids == nullptr) != (embeds == nullptr), [&] {
    return fmt::format("the batch holds {}; allowed: exactly one of \"{}\" and \"{}\"",
                       ids ? "both" : "neither", kIds, kEmbeds);
  });
  const HostTensor& primary = ids ? *ids : *embeds;
  check(primary.shape.size() >= 2, [&] {
    return fmt::format("{} has shape {}; allowed: [1, tokens, ...]", ids ? kIds : kEmbeds, shape_text(primary));
  });
  return primary;
}

std::vector<std::int64_t> resolve_doc_ids(const Batch& batch, const ShardOptions& options,
                                          std::int64_t tokens) {
  std::vector<std::int64_t> ids;
  const char* source = "doc_ids";
  const HostTensor *packed = find(batch, kPackedIds), *mask = find(batch, kMask);
  if (options.doc_ids) {
    ids = *options.doc_ids;
  } else if (packed) {
    ids = integers(*packed, source = kPackedIds);
  } else if (mask) {
    check(mask->shape.size() == 2, [&] {
      return fmt::format(
          "{} has shape {}; allowed: [1, tokens] (the diagonal of a 4-D mask merges documents: pass "
          "\"{}\" instead)",
          kMask, shape_text(*mask), kPackedIds);
    });
    ids = integers(*mask, source = kMask);
  } else {
    ids.assign(static_cast<std::size_t>(tokens), 1);
  }
  check(static_cast<std::int64_t>(ids.size()) == tokens, [&] {
    return fmt::format("{} has {} entries; allowed: {}, one per token", source, ids.size(), tokens);
  });
  return ids;
}

/// Which tensors are sharded, and how.
std::map<std::string, ShardOptions::Aligned> aligned_tensors(const Batch& batch, const ShardOptions& options) {
  const std::map<std::string, double> fills = {{kIds, static_cast<double>(options.pad_token_id)},
                                               {kEmbeds, 0},
                                               {"labels", -100},
                                               {"position_ids", 0},
                                               {kPackedIds, 0},
                                               {"loss_mask", 0},
                                               {kVisualMask, 0}};
  std::map<std::string, ShardOptions::Aligned> out;
  for (const auto& [name, fill] : fills) {
    const HostTensor* tensor = find(batch, name);
    if (!tensor) continue;
    const bool last = name == "position_ids" && tensor->shape.size() == 3;
    const bool floating = tensor->type == ElementType::f32 || tensor->type == ElementType::f16 ||
                          tensor->type == ElementType::bf16;
    out[name] = {last ? 2 : 1, floating ? 0.0 : fill};
  }
  for (const auto& entry : options.aligned) {
    const std::string& name = entry.first;  // clang 14 captures no structured bindings
    check(find(batch, name) != nullptr,
          [&] { return fmt::format("aligned names \"{}\"; allowed: tensors of the batch", name); });
    out[name] = entry.second;
  }
  out.erase(kPaddingMask);  // rebuilt from the document ids
  return out;
}

void validate_aligned(const Batch& batch, const std::map<std::string, ShardOptions::Aligned>& aligned,
                      std::int64_t tokens) {
  for (const auto& entry : aligned) {
    const std::string& name = entry.first;
    const ShardOptions::Aligned& how = entry.second;
    const HostTensor& tensor = batch.at(name);
    plan::validate_shard(tensor, name, how.dimension, how.fill);
    check(tensor.shape[how.dimension] == tokens, [&] {
      return fmt::format("{} has shape {}, which is not row aligned; allowed: {} tokens in dimension {}", name,
                         shape_text(tensor), tokens, how.dimension);
    });
  }
}

/// Prefix counts of visual tokens; empty where no tensor needs them.
std::vector<std::int64_t> visual_counts(const Batch& batch, const ShardOptions& options, std::int64_t tokens) {
  if (options.visual_tensors.empty()) return {};
  const HostTensor* mask = find(batch, kVisualMask);
  check(mask != nullptr, [&] { return fmt::format("visual_tensors needs \"{}\" in the batch", kVisualMask); });
  std::vector<std::int64_t> counts{0};
  for (const std::int64_t visual : integers(*mask, kVisualMask))
    counts.push_back(counts.back() + (visual != 0));
  check(static_cast<std::int64_t>(counts.size()) == tokens + 1, [&] {
    return fmt::format("{} has {} entries; allowed: {}, one per token", kVisualMask, counts.size() - 1, tokens);
  });
  for (const std::string& name : options.visual_tensors) {
    const HostTensor* tensor = find(batch, name);
    check(tensor != nullptr,
          [&] { return fmt::format("visual_tensors names \"{}\"; allowed: tensors of the batch", name); });
    plan::validate(*tensor, name);
    check(!tensor->shape.empty() && tensor->shape[0] == counts.back(), [&] {
      return fmt::format("{} has shape {}; allowed: {} rows, one per true entry of {}", name,
                         shape_text(*tensor), counts.back(), kVisualMask);
    });
  }
  return counts;
}

HostTensor padding_mask(const std::vector<std::int64_t>& doc_ids, std::int64_t begin, std::int64_t rows) {
  HostTensor mask{ElementType::boolean, {1, rows}, std::vector<std::byte>(static_cast<std::size_t>(rows))};
  for (std::int64_t i = 0; i < rows; ++i) mask.data[i] = std::byte{doc_ids[begin + i] == 0};
  return mask;
}

}  // namespace

ShardedBatch shard_batch(const Batch& batch, const ShardOptions& options) {
  const HostTensor& primary = primary_of(batch);
  const std::int64_t sequences = primary.shape[0], tokens = primary.shape[1];
  check(sequences == 1 || options.world_size == 1, [&] {
    return fmt::format("the batch holds {} packed sequences at world_size {}; allowed: 1 (local_batch_size=1)",
                       sequences, options.world_size);
  });
  ShardedBatch out;
  out.length = padded_length(tokens, options.world_size);
  check(options.rank >= 0 && options.rank < options.world_size,
        [&] { return fmt::format("rank is {}; allowed: 0 to {}", options.rank, options.world_size - 1); });
  if (sequences == 1) {
    const std::vector<std::int64_t> ids = resolve_doc_ids(batch, options, tokens);
    const DocLayout layout = DocLayout::from_doc_ids(ids, {.world_size = options.world_size});
    out.doc_ids = ids;
    out.doc_ids.resize(static_cast<std::size_t>(out.length.padded), 0);
    out.packed_cu_seqlens = layout.packed_cu_seqlens();
  }
  if (options.world_size == 1) {
    out.batch = batch;
    return out;
  }
  const auto aligned = aligned_tensors(batch, options);
  validate_aligned(batch, aligned, tokens);
  const std::vector<std::int64_t> visual = visual_counts(batch, options, tokens);

  out.row_offset = options.rank * out.length.local;
  for (const auto& [name, tensor] : batch) {
    const auto how = aligned.find(name);
    if (how != aligned.end()) {
      out.batch[name] =
          shard_rows(tensor, how->second.dimension, how->second.fill, options.world_size, options.rank);
    } else if (std::count(options.visual_tensors.begin(), options.visual_tensors.end(), name) > 0) {
      const std::int64_t begin = std::min(out.row_offset, tokens);
      const std::int64_t end = std::min(out.row_offset + out.length.local, tokens);
      out.batch[name] = plan::slice_rows(tensor, visual[begin], visual[end]);
    } else if (name != kMask) {
      out.batch[name] = tensor;
    }
  }
  out.batch[kPaddingMask] = padding_mask(out.doc_ids, out.row_offset, out.length.local);
  return out;
}

}  // namespace bdcp
