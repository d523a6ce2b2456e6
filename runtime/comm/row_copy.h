// How rows with strides on both sides become the fewest plain or 2-D copies.
#pragma once

#include <cstdint>
#include <cstring>

#include "comm/group.h"

namespace bdcp::comm {

/// `count` pieces of `width` bytes; offsets and pitches in bytes.
struct Copy2d {
  std::int64_t dst = 0, src = 0, width = 0, count = 0, dst_pitch = 0, src_pitch = 0;
};

/// The outer loop over 2-D copies: `repeat` of them, each `dst_step`/`src_step` further on.
struct CopyPlan {
  Copy2d piece;
  std::int64_t repeat = 1, dst_step = 0, src_step = 0;
};
/// dst and src have equal rows, heads and head_bytes. Strides may be anything, 0 on the source side included.
CopyPlan plan_copy(const StridedRows& dst, const StridedRows& src);

void copy_on_host(const StridedRows& dst, const StridedRows& src);
void copy_on_device(device::Device& device, void* stream, const StridedRows& dst, const StridedRows& src);

}  // namespace bdcp::comm
