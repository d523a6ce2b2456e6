// Forward of the reference backend: a CTA per 32 query rows of one document and query head; online softmax.
// Config: dtype (0 f32, 1 f16, 2 bf16), head_dim, head_dim_v, ratio (query heads per K/V head), dropout.
#include "reference_common.cuh"

namespace bdcp::kernel {

__device__ __forceinline__ void forward_padding(const ReferenceForwardArgs& args, const ReferenceItem& item,
                                                int head) {
  for (int row = item.begin + warp_id(); row < item.end; row += kWarps) {
    store_row<Config::head_dim_v, Config::dtype>(args.out, row, head, [](int) { return 0.0f; });
    if (args.lse && lane_id() == 0) args.lse[head * args.lse_stride + row] = -infinity();
  }
}

__device__ __forceinline__ void forward_block(const ReferenceForwardArgs& args, const ReferenceItem& item,
                                              int head, Shared& shared) {
  constexpr int kD = Config::head_dim, kDv = Config::head_dim_v;
  const Segment segment = args.segments[item.segment];
  const int lane = lane_id(), own = warp_id() * kOwn, kv_head = head / Config::ratio;
  const int rows = item.end - item.begin;
  // Row r of this warp sees the keys j <= limit + r of the segment.
  const int limit = item.begin - segment.q_begin + own + (segment.k_end - segment.k_begin) -
                    (segment.q_end - segment.q_begin);
  const int keys = limit - own + rows;  // keys that the last row sees
  const Rows q(args.q, item.begin, rows, head);

  float top[kOwn], total[kOwn], sums[kOwn][lane_columns(kDv)];
  clear(sums);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    top[r] = -infinity();
    total[r] = 0.0f;
  }
#pragma unroll 1
  for (int first = 0; first < keys; first += kTile) {
    const int count = keys - first < kTile ? keys - first : kTile;
    const i64 position = (i64)segment.k_begin + first;
    float scores[kOwn];
    dot_tile<kD>(scores, shared, q, Keys(args.k, args.remote_k, args.remote_len, position, count, kv_head));
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const bool visible = lane < count && first + lane <= limit + r;
      const float score = visible ? scores[r] : -infinity();
      const float new_top = fmaxf(top[r], warp_max(score));
      // Nothing but -inf so far: weights are 0 (or NaN, which must stay).
      const float base = new_top == -infinity() ? 0.0f : new_top;
      const float weight = visible ? expf((score - base) * args.scale) : 0.0f;
      const float rescale = top[r] == -infinity() ? 0.0f : expf((top[r] - base) * args.scale);
      top[r] = new_top;
      total[r] = total[r] * rescale + weight;
#pragma unroll
      for (int t = 0; t < lane_columns(kDv); ++t) sums[r][t] *= rescale;
      shared.weights[0][own + r][lane] =
          weight * keep_factor(args.dropout, (i64)item.begin + own + r, position + lane, head);
    }
    add_tile<kDv>(sums, shared, shared.weights[0],
                  Keys(args.v, args.remote_v, args.remote_len, position, count, kv_head),
                  [&](int r, int i) { return first + i <= limit + r; });
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const float all = warp_sum(total[r]);
    if (own + r >= rows) continue;
    const i64 row = (i64)item.begin + own + r;
    const bool has_keys = limit + r >= 0;
    const float factor = 1.0f / all;
    store_row<kDv, Config::dtype>(args.out, row, head,
                                  [&](int t) { return has_keys ? sums[r][t] * factor : 0.0f; });
    if (args.lse && lane == 0)
      args.lse[head * args.lse_stride + row] = has_keys ? top[r] * args.scale + logf(all) : -infinity();
  }
}

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::kThreads, 1)
    reference_forward(const bdcp::kernel::ReferenceForwardArgs args) {
  using namespace bdcp::kernel;
  __shared__ Shared shared;
  if (past_end(args.item_count, blockIdx.x / (unsigned)args.heads_q)) return;
  const ReferenceItem item = args.items[blockIdx.x / (unsigned)args.heads_q];
  const int head = (int)(blockIdx.x % (unsigned)args.heads_q);
  if (item.segment < 0)
    forward_padding(args, item, head);
  else
    forward_block(args, item, head, shared);
}
