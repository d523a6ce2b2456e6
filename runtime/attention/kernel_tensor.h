// A call's tensors, and the plan's segments, as kernels take them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/backend.h"
#include "kernel_templates/kernel_args.h"

namespace bdcp::attention {

/// Kernels write through the pointers of outputs only.
inline kernel::Tensor to_kernel(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.token_stride, view.head_stride};
}

inline std::vector<kernel::Segment> to_kernel(const std::vector<plan::Segment>& segments) {
  std::vector<kernel::Segment> all;
  all.reserve(segments.size());
  for (const plan::Segment& s : segments) all.push_back({s.q_begin, s.q_end, s.k_begin, s.k_end});
  return all;
}

/// Every row of the tensor starts on 16 bytes. Tensors without rows are never touched.
inline bool aligned_16(const ConstTensorView& view) {
  if (view.tokens == 0 || !view.data) return true;
  const std::int64_t unit = 16 / static_cast<std::int64_t>(size_of(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.token_stride % unit == 0 &&
         view.head_stride % unit == 0;
}

/// Bytes of a part of the workspace: the next one is aligned.
inline std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace bdcp::attention
