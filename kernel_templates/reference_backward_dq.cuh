// dQ of the reference backend, and delta = rowsum(dO * O) for reference_backward_dkv: a CTA per 32 query rows
// of one document and query head, keys in ascending order. Config as in reference_forward.cuh.
#include "reference_common.cuh"

namespace bdcp::kernel {

__device__ __forceinline__ void dq_block(const ReferenceBackwardArgs& args, const ReferenceItem& item, int head,
                                         Shared& shared) {
  constexpr int kD = Config::head_dim, kDv = Config::head_dim_v;
  const Segment segment = args.segments[item.segment];
  const int lane = lane_id(), own = warp_id() * kOwn, kv_head = head / Config::ratio;
  const int rows = item.end - item.begin;
  const int limit = item.begin - segment.q_begin + own + (segment.k_end - segment.k_begin) -
                    (segment.q_end - segment.q_begin);
  const int keys = limit - own + rows;
  const Rows q(args.q, item.begin, rows, head), out(args.out, item.begin, rows, head),
      dout(args.dout, item.begin, rows, head);

  float lse[kOwn], delta[kOwn], sums[kOwn][lane_columns(kD)];
  clear(sums);
  // Lane l sums row l % kOwn, in the order of dot_tile.
  float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  const int mine = own + lane % kOwn;
  if (mine < rows) {
    const Element* a = dout.at(mine);
    const Element* b = out.at(mine);
    for (int c = 0; c < kDv; c += 4)
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (c + u < kDv)
          parts[u] = fmaf(to_float<Config::dtype>(a[c + u]), to_float<Config::dtype>(b[c + u]), parts[u]);
  }
  const float sum = add_quarters(parts);
  if (mine < rows && lane < kOwn) args.delta[head * args.delta_stride + item.begin + mine] = sum;
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    delta[r] = __shfl_sync(0xffffffffu, sum, r);
    lse[r] = own + r < rows ? args.lse[head * args.lse_stride + item.begin + own + r] : 0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < keys; first += kTile) {
    const int count = keys - first < kTile ? keys - first : kTile;
    const i64 position = (i64)segment.k_begin + first;
    const Keys k(args.k, args.remote_k, args.remote_len, position, count, kv_head);
    const Keys v(args.v, args.remote_v, args.remote_len, position, count, kv_head);
    float scores[kOwn], dp[kOwn];
    dot_tile<kD>(scores, shared, q, k);
    dot_tile<kDv>(dp, shared, dout, v);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const bool visible = lane < count && first + lane <= limit + r;
      const float p = expf(fmaf(scores[r], args.scale, -lse[r]));
      const float keep = keep_factor(args.dropout, (i64)item.begin + own + r, position + lane, head);
      shared.weights[0][own + r][lane] = visible ? p * (dp[r] * keep - delta[r]) : 0.0f;
    }
    add_tile<kD>(sums, shared, shared.weights[0], k, [&](int r, int i) { return first + i <= limit + r; });
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r)
    if (own + r < rows)
      store_row<kD, Config::dtype>(args.dq, (i64)item.begin + own + r, head,
                                   [&](int t) { return sums[r][t] * args.scale; });
}

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::kThreads, 1)
    reference_backward_dq(const bdcp::kernel::ReferenceBackwardArgs args) {
  using namespace bdcp::kernel;
  __shared__ Shared shared;
  if (past_end(args.item_count, blockIdx.x / (unsigned)args.heads_q)) return;
  const ReferenceItem item = args.items[blockIdx.x / (unsigned)args.heads_q];
  const int head = (int)(blockIdx.x % (unsigned)args.heads_q);
  if (item.segment < 0) {
    for (int row = item.begin + warp_id(); row < item.end; row += kWarps)
      store_row<Config::head_dim, Config::dtype>(args.dq, row, head, [](int) { return 0.0f; });
  } else {
    dq_block(args, item, head, shared);
  }
}
