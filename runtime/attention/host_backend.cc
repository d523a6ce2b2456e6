#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "attention/backend.h"
#include "attention/call_checks.h"
#include "attention/host_kernels.h"
#include "attention/host_numbers.h"
#include "base/check.h"
#include "base/parallel.h"

namespace bdcp::attention {
namespace {

using Index = std::int64_t;

// A block of a segment's rows or keys. Units are runs of blocks, long enough that a thread's hand-out and
// buffers do not matter.
struct Block {
  int segment;
  Index begin, end;
};
struct Work {
  std::vector<Block> blocks;
  std::vector<std::pair<std::size_t, std::size_t>> units;

  void add(int segment, Index count) {
    for (Index begin = 0; begin < count; begin += kHostBlock)
      blocks.push_back({segment, begin, std::min(count, begin + kHostBlock)});
  }
  template <class Cost>
  void cut(const Cost& cost) {
    constexpr Index kEnough = Index{64} * 512;  // visible pairs
    std::size_t first = 0;
    Index sum = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      sum += cost(blocks[i]) + 64;
      if (sum < kEnough && i + 1 < blocks.size()) continue;
      units.emplace_back(first, i + 1);
      first = i + 1;
      sum = 0;
    }
  }
};

class HostAttention final : public PreparedAttention {
 public:
  HostAttention(const CallShape& shape, const plan::RankPlan& plan, const Options& options)
      : shape_(shape), plan_(plan), payload_f32_(options.payload_f32) {
    problem_.ratio = shape.heads_q / shape.heads_kv;
    problem_.head_dim = shape.head_dim;
    problem_.head_dim_v = shape.dim_v();
    problem_.scale = shape.softmax_scale();
    problem_.dropout_p = shape.dropout_p;
    problem_.remote_len = plan.remote_len;
    problem_.shared_begin = plan.shared_begin;
    for (int s = 0; s < static_cast<int>(plan.segments.size()); ++s) {
      const plan::Segment& segment = plan.segments[s];
      const int part = s < plan.remote_segments() ? 1 : 0;
      rows_[part].add(s, segment.rows());
      keys_[part].add(s, segment.keys());
      rows_end_ = std::max<Index>(rows_end_, segment.q_end);
      keys_end_ = std::max<Index>(keys_end_, segment.k_end);
    }
    keys_end_ = std::max(keys_end_, plan.remote_len);
    for (int part = 0; part < 2; ++part) {
      rows_[part].cut([&](const Block& block) {
        return (block.end - block.begin) *
               std::max<Index>(0, HostProblem::visible(plan.segments[block.segment], block.end - 1));
      });
      keys_[part].cut([&](const Block& block) {
        return (block.end - block.begin) * Index{plan.segments[block.segment].rows()};
      });
    }
  }

  void forward(const ForwardCall& call, Part part, Stream stream) const override {
    check_stream(stream);
    check_call(shape_, plan_, call);
    const Work& work = rows_[part == Part::remote ? 1 : 0];
    for_units(work, shape_.heads_q, [&](const Block& block, int head, HostScratch& scratch) {
      host_forward_block(problem_, call, plan_.segments[block.segment], block.begin, block.end, head, scratch);
    });
    if (part == Part::remote) return;
    for (Index row = rows_end_; row < plan_.rows; ++row)
      for (int head = 0; head < shape_.heads_q; ++head) {
        zero(call.out, row, head);
        if (call.lse.data)
          call.lse.data[head * call.lse.head_stride + row] = -std::numeric_limits<float>::infinity();
      }
  }

  void backward(const BackwardCall& call, Part part, Stream stream) const override {
    check_stream(stream);
    check_call(shape_, plan_, call, payload_f32_);
    const int side = part == Part::remote ? 1 : 0;
    for_units(rows_[side], shape_.heads_q, [&](const Block& block, int head, HostScratch& scratch) {
      host_dq_block(problem_, call, plan_.segments[block.segment], block.begin, block.end, head, scratch);
    });
    for_units(keys_[side], shape_.heads_kv, [&](const Block& block, int head, HostScratch& scratch) {
      host_dkv_block(problem_, call, plan_.segments[block.segment], block.begin, block.end, head, scratch);
    });
    if (part == Part::remote) return;
    for (Index row = rows_end_; row < plan_.rows; ++row)
      for (int head = 0; head < shape_.heads_q; ++head) zero(call.dq, row, head);
    for (Index position = keys_end_; position < plan_.remote_len + plan_.key_rows; ++position)
      for (int head = 0; head < shape_.heads_kv; ++head) host_zero_key(problem_, call, position, head);
  }

 private:
  static void check_stream(Stream stream) {
    require(stream.is_host(), ErrorCode::invalid_argument, [&] {
      return fmt::format("the host backend was given a stream of CUDA device {}, needs Stream::host()",
                         stream.device);
    });
  }
  static void zero(const TensorView& view, Index row, int head) {
    zero_row(view.data, view.dtype, row * view.token_stride + head * view.head_stride,
             static_cast<int>(view.dim));
  }
  template <class Body>
  void for_units(const Work& work, int heads, const Body& body) const {
    const auto units = static_cast<Index>(work.units.size());
    // Last blocks of long documents cost most; they tend to come last, so start there.
    parallel_for(units * heads, [&](Index i) {
      const auto [first, last] = work.units[static_cast<std::size_t>(units - 1 - i / heads)];
      HostScratch scratch;
      for (std::size_t b = first; b < last; ++b) body(work.blocks[b], static_cast<int>(i % heads), scratch);
    });
  }

  CallShape shape_;
  plan::RankPlan plan_;
  bool payload_f32_;
  HostProblem problem_;
  Work rows_[2], keys_[2];  // local, remote
  Index rows_end_ = 0, keys_end_ = 0;
};

class HostBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::host; }

  plan::Verdict can(const CallShape& shape, const Target& target, const Options&) const override {
    if (!target.host())
      return {false, "host_memory_only",
              fmt::format("the host backend reads host memory; the call runs on CUDA device {}",
                          target.facts->ordinal)};
    return check_shape(shape);
  }

  std::vector<jit::KernelSpec> required_kernels(const CallShape&, const std::string&, bool,
                                                const Options&) const override {
    return {};
  }

  std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                   const Options& options,
                                                   const PrepareContext&) const override {
    const plan::Verdict verdict = can(shape, Target{}, options);
    require(verdict.ok, ErrorCode::unsupported, verdict.text.c_str());
    return std::make_shared<HostAttention>(shape, plan, options);
  }
};

}  // namespace

std::unique_ptr<Backend> make_host_backend() { return std::make_unique<HostBackend>(); }

}  // namespace bdcp::attention
