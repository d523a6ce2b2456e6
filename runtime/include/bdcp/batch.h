// Padding and sharding a batch over the ranks of a context-parallel group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bdcp {

/// Element kinds a batch tensor may have.
enum class ElementType { i32, i64, boolean, f32, f16, bf16 };
std::size_t size_of(ElementType type);

/// A host tensor of any rank: contiguous, row-major, owned.
struct HostTensor {
  ElementType type = ElementType::i64;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
  std::int64_t elements() const;
};

/// A batch: named tensors. Row-aligned by name, sharded along dimension 1 with the fill given: "input_ids" (pad
/// id), "inputs_embeds" (0), "labels" (-100), "position_ids" (0; of rank 3: the last dimension),
/// "_packed_seq_ids" (0), "loss_mask" (0), "padding_mask" (true), "visual_pos_masks" (false).
using Batch = std::map<std::string, HostTensor>;

struct PaddedLength {
  std::int64_t original = 0, padded = 0, local = 0;
};
/// Pads to a multiple of 2 * world_size (world 1: unchanged). Throws Error(invalid_argument) for negative
/// tokens or world_size < 1.
PaddedLength padded_length(std::int64_t tokens, int world_size);

/// Rank's rows of `tensor` along `dimension` (0-based), padded to padded_length().padded with `fill`. Works for
/// any element type; integers take integral fills in their range, booleans 0 or 1, and f16/bf16 round to
/// nearest even. Throws Error(invalid_argument) naming the value.
HostTensor shard_rows(const HostTensor& tensor, int dimension, double fill, int world_size, int rank);

struct ShardOptions {
  int world_size = 1, rank = 0;
  std::int64_t pad_token_id = 0;
  /// Explicit document ids ([S] or [1, S]); otherwise "_packed_seq_ids", else a 2-D "attention_mask", else one
  /// document.
  std::optional<std::vector<std::int64_t>> doc_ids = std::nullopt;
  /// Per-visual-token tensors (first dimension = number of true entries of "visual_pos_masks") to slice to the
  /// rank.
  std::vector<std::string> visual_tensors = {};
  /// Further row-aligned tensors: name -> {dimension, fill}.
  struct Aligned {
    int dimension = 1;
    double fill = 0.0;
  };
  std::map<std::string, Aligned> aligned = {};
};

struct ShardedBatch {
  /// This rank's shard: row-aligned tensors are sharded, "padding_mask" [1, local] is added (document id 0),
  /// "attention_mask" is dropped (document ids replace it), others are kept. World 1: the input unchanged.
  Batch batch;
  std::vector<std::int64_t> doc_ids;  ///< of the padded sequence, all ranks; empty: several sequences (world 1)
  PaddedLength length;
  std::int64_t row_offset = 0;
  std::vector<std::int64_t> packed_cu_seqlens;  ///< boundaries with the padding tail as one last segment
};

/// Pads and shards a whole batch. Everything is validated before anything is built; `batch` is never changed.
/// Throws Error(invalid_argument) for: not exactly one of "input_ids" and "inputs_embeds"; more than one packed
/// sequence (local_batch_size=1) at world > 1; tensors that are not row aligned; 4-D attention masks (they
/// merge documents); a layout that DocLayout refuses (Error(invalid_layout)).
ShardedBatch shard_batch(const Batch& batch, const ShardOptions& options);

}  // namespace bdcp
