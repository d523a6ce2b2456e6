#include "attention/covering_cases.h"

#include <cmath>

#include "attention/split.h"
#include "support/covering.h"

namespace bdcp::test {
namespace {

using Order = HostTensor::Order;
using Lengths = std::vector<std::int64_t>;

enum Factor { kShape, kLayout, kRemote, kOrder, kPoison, kCall, kInvariant, kScale };
enum LayoutKind { kOne, kEdges, kTiny, kEmpty, kShort, kMixed, kTail, kOnes, kBelow, kAbove, kNoKeys, kChunks };
enum RemoteKind { kLocalOnly, kRemoteF32, kRemoteInput };
enum PoisonKind { kPadding, kGaps, kDocument };
enum CallKind { kForwardOnly, kForwardLse, kBackward, kDeterministic };
const char* const kLayoutNames[] = {"one_document", "tile_edges", "tiny",         "empty_documents",
                                    "many_short",   "mixed",      "padding_tail", "one_token_documents",
                                    "q_below_k",    "q_above_k",  "no_keys",      "chunked_prefill"};
constexpr int kLayouts = kChunks + 1;

struct Heads {
  DType dtype;
  int dim, dim_v, ratio;
};
constexpr Heads kShapes[] = {
    {DType::bf16, 8, 8, 1},     {DType::f16, 16, 24, 16},   {DType::bf16, 40, 72, 3},
    {DType::f16, 64, 64, 4},    {DType::bf16, 72, 72, 5},   {DType::f16, 96, 80, 2},
    {DType::bf16, 120, 120, 3}, {DType::f16, 136, 136, 7},  {DType::bf16, 128, 128, 8},
    {DType::f16, 192, 128, 1},  {DType::bf16, 256, 256, 2},
};

/// Documents of a kind; `turn` varies lengths within it.
RaggedLayout layout_of(int kind, int turn, std::int64_t remote) {
  const std::int64_t off = turn % 3 - 1;  // -1, 0, 1
  Lengths q, k;
  std::int64_t pad_q = turn % 2 ? 0 : 5, pad_k = pad_q;
  switch (kind) {
    case kOne:
      q = {turn % 2 ? 256 + off : 130 + off};
      break;
    case kEdges:
      q = turn % 2 ? Lengths{128 + off, 64 - off, 32 + off} : Lengths{64 + off, 128 - off, 16 + off};
      break;
    case kTiny:
      for (int i = 0; i < 40; ++i) q.push_back(1 + (i * 5 + turn) % 7);
      break;
    case kEmpty:
      q = {0, 5, 0, 0, 33 + off, 0, 70, 0};
      break;
    case kShort:
      for (int i = 0; i < 16; ++i) q.push_back(9 + (i * 7 + turn) % 13);
      break;
    case kMixed:
      q = {3, 150 + off, 9, 33, 1, 64, 2};
      break;
    case kTail:
      q = {20, 45 + off};
      pad_q = pad_k = 140;
      break;
    case kOnes:
      q = Lengths(20, 1);
      q.push_back(129 + off);
      q.push_back(1);
      break;
    case kBelow:
      q = {3, 40, 64 + off, 1};
      k = {7, 100, 130, 65 + off};
      break;
    case kAbove:
      q = {70, 5, 200, 33};
      k = {35, 1, 65 + off, 32};
      break;
    case kNoKeys:
      q = {2, 30, 0, 17, 40};
      k = {0, 30, 12, 0, 44 + off};
      break;
    default:
      q = {40, 0, 3, 33, 5, 1};
      k = {40, 6, 90, 0, 70, 1};
      pad_q = 3, pad_k = 4;
  }
  if (k.empty()) {
    if (remote > 0 && q.front() == 0)
      q.erase(q.begin());  // the first document is the one that came from the left
    k = q;
    k.front() += remote;
  }
  return from_lengths(q, k, pad_q, pad_k, kLayoutNames[kind]);
}

/// A document in the middle that has rows with keys.
int document_to_poison(const RaggedLayout& layout, int turn) {
  const int documents = static_cast<int>(layout.cu_q.size()) - 1;
  for (int i = 0; i < documents; ++i) {
    const auto d = static_cast<std::size_t>((documents / 2 + turn + i) % documents);
    if (layout.cu_q[d + 1] > layout.cu_q[d] && layout.cu_k[d + 1] > layout.cu_k[d]) return static_cast<int>(d);
  }
  return -1;
}

CoveringDesign design() {
  CoveringDesign design;
  design.levels = {static_cast<int>(std::size(kShapes)), kLayouts, 3, 4, 3, 4, 2, 3};
  design.allowed = [](const DesignRow& row) {
    const bool rectangular = row[kLayout] >= kBelow;  // only ever on one rank
    return !(rectangular && row[kRemote] > kLocalOnly) && !(row[kLayout] == kOne && row[kPoison] == kDocument);
  };
  return design.cover_all(2).cover({kLayout, kRemote, kOrder, kPoison, kCall}, 3);
}

void put_rows(HostTensor& to, std::int64_t at, const HostTensor& from, std::int64_t end) {
  for (std::int64_t t = 0; t < end; ++t)
    for (std::int64_t h = 0; h < from.heads(); ++h)
      for (std::int64_t d = 0; d < from.dim(); ++d) to.set(at + t, h, d, from.at(t, h, d));
}

/// dK or dV by destination.
struct KeyGradient {
  HostTensor local, shared, remote;
  KeyGradient(const CoveringCase& one, const plan::RankPlan& plan, int dim)
      : local(one.c.shape.dtype, plan.key_rows, one.c.shape.heads_kv, dim, one.c.order),
        shared(DType::f32, one.shared_keys, one.c.shape.heads_kv, dim),
        remote(one.options.payload_f32 ? DType::f32 : one.c.shape.dtype, one.remote_len, one.c.shape.heads_kv,
               dim) {
    for (HostTensor* x : {&local, &shared, &remote}) x->fill_bytes(0xFF);
  }
  HostTensor whole(const CoveringCase& one, const plan::RankPlan& plan) const {
    HostTensor all(DType::f32, one.remote_len + plan.key_rows, local.heads(), local.dim());
    put_rows(all, 0, remote, one.remote_len);
    put_rows(all, one.remote_len, local, plan.shared_begin);
    put_rows(all, one.remote_len + plan.shared_begin, shared, one.shared_keys);
    return all;
  }
};

}  // namespace

std::vector<CoveringCase> covering_cases() {
  std::vector<CoveringCase> cases;
  int turn = 0;
  for (const DesignRow& row : design().rows()) {
    CoveringCase one;
    const Heads& heads = kShapes[row[kShape]];
    const std::int64_t remote_lens[] = {37, 1, 130};
    one.remote_len = row[kRemote] == kLocalOnly ? 0 : remote_lens[turn % 3];
    one.options.payload_f32 = row[kRemote] != kRemoteInput;
    one.c.layout = layout_of(row[kLayout], turn, one.remote_len);
    // The last document goes on in the next rank, which is only so where no padding follows it.
    if (one.remote_len > 0 && one.c.layout.pad_k == 0) {
      const auto& cu = one.c.layout.cu_k;
      one.shared_keys = std::min(cu.back() - cu[cu.size() - 2], cu.back() - one.remote_len);
    }
    const int heads_kv = heads.ratio >= 8 ? 1 : 1 + turn % 2;
    one.c.shape = make_shape(heads.ratio * heads_kv, heads_kv, heads.dim, heads.dtype, heads.dim_v);
    if (row[kScale] > 0) one.c.shape.scale = row[kScale] == 1 ? 0.02 : 0.5;
    one.c.shape.backward = row[kCall] >= kBackward;
    one.lse = row[kCall] != kForwardOnly;
    one.options.deterministic = row[kCall] == kDeterministic;
    one.options.batch_invariant = row[kInvariant] == 1;
    const Order orders[] = {Order::packed, Order::spaced, Order::heads_first, Order::padded};
    one.c.order = orders[row[kOrder]];
    one.c.seed = 5000 + static_cast<std::uint64_t>(turn);
    one.poison_gaps = row[kPoison] == kGaps;
    if (row[kPoison] == kDocument) one.poisoned = document_to_poison(one.c.layout, turn);
    one.name = "case " + std::to_string(turn) + ":";
    for (const int level : row) one.name += " " + std::to_string(level);
    one.name += " remote " + std::to_string(one.remote_len) + " shared " + std::to_string(one.shared_keys) +
                " " + describe(one.c);
    cases.push_back(std::move(one));
    ++turn;
  }
  return cases;
}

plan::RankPlan plan_of(const CoveringCase& one) {
  plan::RankPlan plan = single_rank_plan(one.c.layout);
  plan.square = one.c.layout.square() || one.remote_len > 0;
  plan.remote_len = plan.range.back = one.remote_len;
  plan.key_rows -= one.remote_len;
  plan.shared_begin = plan.key_rows - one.shared_keys;
  if (one.remote_len > 0) {
    plan.rank = 1;
    plan.recvs = {{0, 1, 0, one.remote_len}};
  }
  return plan;
}

Data data_of(const CoveringCase& one, bool clean) {
  Data data = make_data(one.c);
  if (one.poison_gaps) {
    Data gaps = data;
    for (HostTensor* x : {&gaps.q, &gaps.k, &gaps.v, &gaps.dout}) x->fill_bytes(0xFF);
    put_rows(gaps.q, 0, data.q, data.q.tokens());
    put_rows(gaps.k, 0, data.k, data.k.tokens());
    put_rows(gaps.v, 0, data.v, data.v.tokens());
    put_rows(gaps.dout, 0, data.dout, data.dout.tokens());
    data = std::move(gaps);
  }
  if (!clean && one.poisoned >= 0) {
    const auto d = static_cast<std::size_t>(one.poisoned);
    for (HostTensor* x : {&data.q, &data.dout}) x->poison(one.c.layout.cu_q[d], one.c.layout.cu_q[d + 1]);
    for (HostTensor* x : {&data.k, &data.v}) x->poison(one.c.layout.cu_k[d], one.c.layout.cu_k[d + 1]);
  }
  return data;
}

Outputs run_covering(const attention::PreparedAttention& prepared, const CoveringCase& one, const Data& data,
                     bool zero_out) {
  using attention::Part;
  const plan::RankPlan plan = plan_of(one);
  const CallShape& s = one.c.shape;
  const std::int64_t keys = one.remote_len + plan.key_rows;
  Outputs outputs = make_outputs(one.c);
  for (HostTensor* x : {&outputs.out, &outputs.dq}) x->fill_bytes(0xFF);
  HostTensor remote_k = copy_rows(data.k, 0, one.remote_len), remote_v = copy_rows(data.v, 0, one.remote_len);
  // Heads of LSE lie further apart than tokens where strides are free.
  const std::int64_t lse_stride = plan.rows + (one.c.order == Order::packed ? 0 : 3);
  std::vector<float> lse(static_cast<std::size_t>(s.heads_q * lse_stride), NAN);

  attention::ForwardCall forward = forward_call(one.c, data, outputs);
  forward.k = data.k.rows(one.remote_len, keys);
  forward.v = data.v.rows(one.remote_len, keys);
  if (one.remote_len > 0) {
    forward.remote_k = remote_k.view();
    forward.remote_v = remote_v.view();
  }
  forward.lse = {lse.data(), s.heads_q, plan.rows, lse_stride};
  if (!one.lse) forward.lse = {};
  std::vector<float> workspace(
      std::max(prepared.forward_workspace(), prepared.backward_workspace()) / sizeof(float) + 1, NAN);
  forward.workspace = {workspace.data(), workspace.size() * sizeof(float)};
  for (const Part part : {Part::local, Part::remote})
    if (part == Part::local || one.remote_len > 0) prepared.forward(forward, part, Stream::host());

  KeyGradient dk(one, plan, s.head_dim), dv(one, plan, s.dim_v());
  if (s.backward) {
    const HostTensor out = outputs.out;
    if (zero_out) outputs.out.fill(0);
    attention::BackwardCall backward = backward_call(one.c, data, outputs);
    backward.k = forward.k;
    backward.v = forward.v;
    backward.remote_k = forward.remote_k;
    backward.remote_v = forward.remote_v;
    backward.lse = {lse.data(), s.heads_q, plan.rows, lse_stride};
    backward.dk = dk.local.view();
    backward.dv = dv.local.view();
    if (one.shared_keys > 0) {
      backward.shared_dk = dk.shared.view();
      backward.shared_dv = dv.shared.view();
    }
    if (one.remote_len > 0) {
      backward.remote_dk = dk.remote.view();
      backward.remote_dv = dv.remote.view();
    }
    backward.workspace = forward.workspace;
    for (const Part part : {Part::local, Part::remote})
      if (part == Part::local || one.remote_len > 0) prepared.backward(backward, part, Stream::host());
    outputs.out = out;
    outputs.dk = dk.whole(one, plan);
    outputs.dv = dv.whole(one, plan);
    // Rows that later ranks add to are not final here: nothing is written to them.
    for (const HostTensor* x : {&dk.local, &dv.local})
      for (std::int64_t t = plan.shared_begin; t < plan.key_rows; ++t)
        for (std::int64_t d = 0; d < x->dim(); ++d)
          EXPECT_TRUE(std::isnan(x->at(t, 0, d))) << "a shared key row was written";
  }
  for (const HostTensor* x : {&outputs.out, &outputs.dq, &dk.local, &dv.local})
    EXPECT_TRUE(x->gaps_are(0xFF)) << "memory between the rows of an output was written";
  for (std::int64_t h = 0; h < s.heads_q && one.lse; ++h)
    for (std::int64_t t = 0; t < lse_stride; ++t) {
      const float value = lse[static_cast<std::size_t>(h * lse_stride + t)];
      if (t < plan.rows)
        outputs.lse.data[static_cast<std::size_t>(h * plan.rows + t)] = value;
      else
        EXPECT_TRUE(std::isnan(value)) << "memory between the heads of LSE was written";
    }
  return outputs;
}

void expect_covering(const CoveringCase& one, const Expected& expected, const Outputs& outputs) {
  expect_results(one.c, expected, outputs, one.lse, one.c.shape.backward);
}

void expect_isolated(const CoveringCase& one, const Outputs& clean, const Outputs& poisoned, bool with_dq) {
  const auto d = static_cast<std::size_t>(one.poisoned);
  const RaggedLayout& l = one.c.layout;
  const auto same = [&](std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin, std::int64_t k_end) {
    EXPECT_TRUE(poisoned.out.same_bits(clean.out, q_begin, q_end)) << "out";
    if (one.lse) {
      EXPECT_TRUE(same_bits(poisoned.lse, clean.lse, q_begin, q_end)) << "lse";
    }
    if (!one.c.shape.backward) return;
    EXPECT_TRUE(poisoned.dk.same_bits(clean.dk, k_begin, k_end)) << "dk";
    EXPECT_TRUE(poisoned.dv.same_bits(clean.dv, k_begin, k_end)) << "dv";
    if (with_dq) {
      EXPECT_TRUE(poisoned.dq.same_bits(clean.dq, q_begin, q_end)) << "dq";
      return;
    }
    // Sums in another order round to a neighbour.
    for (std::int64_t t = q_begin; t < q_end; ++t)
      for (std::int64_t h = 0; h < clean.dq.heads(); ++h)
        for (std::int64_t i = 0; i < clean.dq.dim(); ++i) {
          const double was = clean.dq.at(t, h, i);
          ASSERT_LE(std::abs(poisoned.dq.at(t, h, i) - was), 1e-4 + std::abs(was) / 64) << "dq of row " << t;
        }
  };
  same(0, l.cu_q[d], 0, l.cu_k[d]);
  same(l.cu_q[d + 1], l.rows(), l.cu_k[d + 1], l.key_rows());
  const std::int64_t last = l.cu_q[d + 1] - 1;
  EXPECT_TRUE(std::isnan(poisoned.out.at(last, 0, 0))) << "the poisoned document's own NaN is lost";
  if (one.lse) {
    EXPECT_TRUE(std::isnan(poisoned.lse.data[static_cast<std::size_t>(last)]));
  }
  if (!one.c.shape.backward) return;
  EXPECT_TRUE(std::isnan(poisoned.dq.at(last, 0, 0)));
  EXPECT_TRUE(std::isnan(poisoned.dv.at(l.cu_k[d + 1] - 1, 0, 0)));
}

}  // namespace bdcp::test
