// PODs that host and device share. NVRTC-clean: no include, no std type. Offsets and strides are 64-bit.
#pragma once

namespace bdcp::kernel {

typedef long long i64;

/// Rows [row][head][dim]; strides in elements; dim is contiguous.
struct Tensor {
  void* data;
  i64 row_stride, head_stride;
};

/// One document's part; see plan::Segment.
struct Segment {
  int q_begin, q_end, k_begin, k_end;
};

/// One CTA's rows or key positions, [begin, end), of a segment; segment < 0: padding.
struct ReferenceItem {
  int segment, begin, end;
};

/// Philox key and first counter word; a pair is dropped where the word is below `threshold`.
struct DropoutArgs {
  unsigned seed_low, seed_high, offset, threshold;
  float keep_scale;        ///< 1 / (1 - p)
  i64 q_offset, k_offset;  ///< packed-sequence index of row 0 and key position 0
};

/// Grid: items * heads_q CTAs in x. `item_count` here and elsewhere: where on the device to read how many of
/// the grid's items there are, in launches that are captured for later work lists; null: all of them.
struct ReferenceForwardArgs {
  Tensor q, k, v, remote_k, remote_v, out;
  float* lse;  ///< [heads_q][rows], may be null
  i64 lse_stride, remote_len;
  const Segment* segments;
  const ReferenceItem* items;
  const int* item_count;
  float scale;
  int heads_q;
  DropoutArgs dropout;
};

/// For reference_backward_dq (items are rows; grid items * heads_q) and reference_backward_dkv (items are key
/// positions; grid items * heads_kv).
struct ReferenceBackwardArgs {
  Tensor q, k, v, remote_k, remote_v, out, dout;
  Tensor dq, dk, dv, shared_dk, shared_dv, remote_dk, remote_dv;
  const float* lse;
  float* delta;  ///< [heads_q][rows]: written by dq, read by dkv
  i64 lse_stride, delta_stride, remote_len, shared_begin;
  const Segment* segments;
  const ReferenceItem* items;
  const int* item_count;
  float scale;
  int heads_q, heads_kv;
  DropoutArgs dropout;
};

}  // namespace bdcp::kernel
