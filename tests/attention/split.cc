#include "attention/split.h"

#include <algorithm>
#include <cmath>

#include "bdcp/doc_layout.h"

namespace bdcp::test {

using attention::Part;

HostTensor copy_rows(const HostTensor& from, std::int64_t begin, std::int64_t end) {
  HostTensor to(from.dtype(), end - begin, from.heads(), from.dim());
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t h = 0; h < from.heads(); ++h)
      for (std::int64_t d = 0; d < from.dim(); ++d) to.set(t - begin, h, d, from.at(t, h, d));
  return to;
}

namespace {

// sums[key][head][d] += rows of a partial that starts at packed row `begin`.
void add_rows(std::vector<double>& sums, const HostTensor& partial, std::int64_t begin) {
  const std::vector<double> values = partial.values();
  const std::int64_t width = partial.heads() * partial.dim();
  for (std::size_t i = 0; i < values.size(); ++i)
    sums[static_cast<std::size_t>(begin * width) + i] += values[i];
}

}  // namespace

void expect_ranks_equal_whole(Case c, const Data& data, int world, const attention::Options& options,
                              const Prepare& prepare, bool exact_dq) {
  SCOPED_TRACE(describe(c) + " over " + std::to_string(world));
  ASSERT_EQ(c.layout.rows() % (2 * world), 0);
  const CallShape& s = c.shape;
  const Outputs whole = run(*prepare(single_rank_plan(c.layout)), c, data);
  const DocLayout layout = DocLayout::from_cu_seqlens(std::span<const std::int64_t>(c.layout.cu_q),
                                                      {.world_size = world, .padding_tokens = c.layout.pad_q});
  const plan::GlobalPlan global = plan::make_global_plan(layout);
  std::vector<double> dk(static_cast<std::size_t>(c.layout.rows()) * s.heads_kv * s.head_dim);
  std::vector<double> dv(static_cast<std::size_t>(c.layout.rows()) * s.heads_kv * s.dim_v());

  for (int rank = 0; rank < world; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const plan::RankPlan plan = plan::make_rank_plan(layout, global, rank);
    const std::int64_t begin = plan.range.row_offset, end = begin + plan.rows, first = begin - plan.remote_len;
    const auto prepared = prepare(plan);
    HostTensor q = copy_rows(data.q, begin, end), k = copy_rows(data.k, begin, end);
    HostTensor v = copy_rows(data.v, begin, end), dout = copy_rows(data.dout, begin, end);
    HostTensor remote_k = copy_rows(data.k, first, begin), remote_v = copy_rows(data.v, first, begin);
    Outputs o{{s.dtype, plan.rows, s.heads_q, s.dim_v()},
              {s.dtype, plan.rows, s.heads_q, s.head_dim},
              {s.dtype, plan.rows, s.heads_kv, s.head_dim},
              {s.dtype, plan.rows, s.heads_kv, s.dim_v()},
              {s.heads_q, plan.rows}};
    const std::int64_t shared = plan.key_rows - plan.shared_begin;
    const DType payload = options.payload_f32 ? DType::f32 : s.dtype;
    HostTensor shared_dk(DType::f32, shared, s.heads_kv, s.head_dim),
        shared_dv(DType::f32, shared, s.heads_kv, s.dim_v());
    HostTensor remote_dk(payload, plan.remote_len, s.heads_kv, s.head_dim);
    HostTensor remote_dv(payload, plan.remote_len, s.heads_kv, s.dim_v());
    // What backward leaves unwritten must show.
    for (HostTensor* x : {&shared_dk, &shared_dv, &remote_dk, &remote_dv, &o.dk, &o.dv}) x->fill(1e4);

    attention::ForwardCall forward;
    forward.q = q.view();
    forward.k = k.view();
    forward.v = v.view();
    forward.remote_k = remote_k.view();
    forward.remote_v = remote_v.view();
    forward.out = o.out.view();
    forward.lse = o.lse.view();
    forward.dropout = c.dropout;
    forward.global_q_offset = begin;
    forward.global_k_offset = first;
    attention::BackwardCall backward;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.remote_k = forward.remote_k;
    backward.remote_v = forward.remote_v;
    backward.out = o.out.view();
    backward.dout = dout.view();
    backward.lse = o.lse.view();
    backward.dq = o.dq.view();
    backward.dk = o.dk.view();
    backward.dv = o.dv.view();
    backward.shared_dk = shared_dk.view();
    backward.shared_dv = shared_dv.view();
    backward.remote_dk = remote_dk.view();
    backward.remote_dv = remote_dv.view();
    backward.dropout = c.dropout;
    backward.global_q_offset = begin;
    backward.global_k_offset = first;
    std::vector<float> workspace(prepared->backward_workspace() / sizeof(float) + 1);
    backward.workspace = {workspace.data(), workspace.size() * sizeof(float)};
    for (const Part part : {Part::local, Part::remote}) prepared->forward(forward, part, Stream::host());
    for (const Part part : {Part::local, Part::remote}) prepared->backward(backward, part, Stream::host());

    for (std::int64_t t = 0; t < plan.rows; ++t)
      for (int h = 0; h < s.heads_q; ++h) {
        const float a = o.lse.data[h * plan.rows + t], b = whole.lse.data[h * c.layout.rows() + begin + t];
        ASSERT_EQ(a, b) << "lse of row " << t;
        for (std::int64_t d = 0; d < s.dim_v(); ++d)
          ASSERT_EQ(o.out.at(t, h, d), whole.out.at(begin + t, h, d)) << "out of row " << t;
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          const double a_dq = o.dq.at(t, h, d), b_dq = whole.dq.at(begin + t, h, d);
          // Sums in another order may round to a neighbour.
          ASSERT_LE(std::abs(a_dq - b_dq), exact_dq ? 0.0 : 1e-5 + std::abs(b_dq) / 64) << "dq of row " << t;
        }
      }
    // Rows that later ranks add to are not final here, and nothing may have been written there.
    for (std::int64_t t = plan.shared_begin; t < plan.key_rows; ++t)
      ASSERT_EQ(o.dk.at(t, 0, 0), HostTensor(s.dtype, 1, 1, 1).fill(1e4).at(0, 0, 0));
    add_rows(dk, copy_rows(o.dk, 0, plan.shared_begin), begin);
    add_rows(dv, copy_rows(o.dv, 0, plan.shared_begin), begin);
    add_rows(dk, shared_dk, begin + plan.shared_begin);
    add_rows(dv, shared_dv, begin + plan.shared_begin);
    add_rows(dk, remote_dk, first);
    add_rows(dv, remote_dv, first);
    // Documents inside the chunk: the same bits, if their rows form the same blocks.
    for (const plan::Segment& segment : plan.segments) {
      const bool whole_document =
          segment.k_begin >= plan.remote_len && segment.k_end - plan.remote_len <= plan.shared_begin;
      if (!whole_document) continue;
      for (std::int64_t p = segment.k_begin - plan.remote_len; p < segment.k_end - plan.remote_len; ++p)
        for (int h = 0; h < s.heads_kv; ++h)
          ASSERT_EQ(o.dk.at(p, h, 0), whole.dk.at(begin + p, h, 0)) << "dk of row " << p;
    }
  }
  const check::Results expected = oracle_of(c, data);
  using check::Quantity;
  EXPECT_TRUE(numbers_pass(Quantity::gradient, s.dtype, dk, expected.dk)) << "dk";
  EXPECT_TRUE(numbers_pass(Quantity::gradient, s.dtype, dv, expected.dv)) << "dv";
}

}  // namespace bdcp::test
