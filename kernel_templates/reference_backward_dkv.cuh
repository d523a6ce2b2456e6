// dK and dV of the reference backend: a CTA per 32 keys of one document and K/V head; its query heads and their
// rows in ascending order, so results are the same bits every time. Config as in reference_forward.cuh, plus
// payload: dtype of the gradients of remote keys.
#include "reference_common.cuh"

namespace bdcp::kernel {

/// Writes one row's gradient to where its position belongs: remote or shared partial, or final.
template <int DIM, class Value>
__device__ __forceinline__ void store_key(const ReferenceBackwardArgs& args, const Tensor& final_rows,
                                          const Tensor& shared_rows, const Tensor& remote_rows, i64 position,
                                          int head, const Value& value) {
  const i64 row = position - args.remote_len;
  if (row < 0)
    store_row<DIM, Config::payload>(remote_rows, position, head, value);
  else if (row >= args.shared_begin)
    store_row<DIM, kF32>(shared_rows, row - args.shared_begin, head, value);
  else
    store_row<DIM, Config::dtype>(final_rows, row, head, value);
}

/// Both gradients at once, or one of them.
template <bool DK, bool DV>
__device__ __forceinline__ void dkv_block(const ReferenceBackwardArgs& args, const ReferenceItem& item,
                                          int kv_head, Shared& shared) {
  constexpr int kD = Config::head_dim, kDv = Config::head_dim_v;
  const Segment segment = args.segments[item.segment];
  const int lane = lane_id(), own = warp_id() * kOwn;
  const int keys = item.end - item.begin, rows = segment.q_end - segment.q_begin;
  // Key r of this warp is seen by the rows i >= limit + r of the segment.
  const int limit = item.begin - segment.k_begin + own + rows - (segment.k_end - segment.k_begin);
  const int first_row = limit - own > 0 ? limit - own : 0;
  const Keys k(args.k, args.remote_k, args.remote_len, item.begin, keys, kv_head);
  const Keys v(args.v, args.remote_v, args.remote_len, item.begin, keys, kv_head);

  float dk[kOwn][DK ? lane_columns(kD) : 1], dv[kOwn][DV ? lane_columns(kDv) : 1];
  clear(dk);
  clear(dv);
#pragma unroll 1
  for (int head = kv_head * Config::ratio; head < (kv_head + 1) * Config::ratio; ++head) {
#pragma unroll 1
    for (int first = first_row; first < rows; first += kTile) {
      const int count = rows - first < kTile ? rows - first : kTile;
      const i64 row = (i64)segment.q_begin + first;
      const Rows q(args.q, row, count, head), dout(args.dout, row, count, head);
      const bool valid = lane < count;
      const float lse = valid ? args.lse[head * args.lse_stride + row + lane] : 0.0f;
      const float delta = valid ? args.delta[head * args.delta_stride + row + lane] : 0.0f;
      float scores[kOwn], dp[kOwn];
      dot_tile<kD>(scores, shared, k, q);
      if constexpr (DK) dot_tile<kDv>(dp, shared, v, dout);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const bool visible = valid && first + lane >= limit + r;
        const float p = expf(fmaf(scores[r], args.scale, -lse));
        const float keep = keep_factor(args.dropout, row + lane, (i64)item.begin + own + r, head);
        if constexpr (DV) shared.weights[0][own + r][lane] = visible ? p * keep : 0.0f;
        if constexpr (DK) shared.weights[1][own + r][lane] = visible ? p * (dp[r] * keep - delta) : 0.0f;
      }
      const auto sees = [&](int r, int i) { return first + i >= limit + r; };
      if constexpr (DV) add_tile<kDv>(dv, shared, shared.weights[0], dout, sees);
      if constexpr (DK) add_tile<kD>(dk, shared, shared.weights[1], q, sees);
    }
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    if (own + r >= keys) continue;
    const i64 position = (i64)item.begin + own + r;
    if constexpr (DK)
      store_key<kD>(args, args.dk, args.shared_dk, args.remote_dk, position, kv_head,
                    [&](int t) { return dk[r][t] * args.scale; });
    if constexpr (DV)
      store_key<kDv>(args, args.dv, args.shared_dv, args.remote_dv, position, kv_head,
                     [&](int t) { return dv[r][t]; });
  }
}

}  // namespace bdcp::kernel

extern "C" __global__ void __launch_bounds__(bdcp::kernel::kThreads, 1)
    reference_backward_dkv(const bdcp::kernel::ReferenceBackwardArgs args) {
  using namespace bdcp::kernel;
  __shared__ Shared shared;
  if (past_end(args.item_count, blockIdx.x / (unsigned)args.heads_kv)) return;
  const ReferenceItem item = args.items[blockIdx.x / (unsigned)args.heads_kv];
  const int kv_head = (int)(blockIdx.x % (unsigned)args.heads_kv);
  if (item.segment < 0) {
    for (int position = item.begin + warp_id(); position < item.end; position += kWarps) {
      const auto zero = [](int) { return 0.0f; };
      store_key<Config::head_dim>(args, args.dk, args.shared_dk, args.remote_dk, position, kv_head, zero);
      store_key<Config::head_dim_v>(args, args.dv, args.shared_dv, args.remote_dv, position, kv_head, zero);
    }
  } else if constexpr (lane_columns(Config::head_dim) + lane_columns(Config::head_dim_v) <= 24) {
    dkv_block<true, true>(args, item, kv_head, shared);
  } else {  // both sums would not fit in registers
    dkv_block<true, false>(args, item, kv_head, shared);
    dkv_block<false, true>(args, item, kv_head, shared);
  }
}
