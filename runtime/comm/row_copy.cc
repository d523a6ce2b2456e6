#include "comm/row_copy.h"

#include <algorithm>
#include <utility>

namespace bdcp::comm {
namespace {

struct Dimension {
  std::int64_t count = 1, dst = 0, src = 0;
};

/// True if `outer` continues where `inner` (of `extent` bytes or steps on both sides) ends.
bool folds(const Dimension& outer, const Dimension& inner) {
  return outer.dst == inner.count * inner.dst && outer.src == inner.count * inner.src;
}

}  // namespace

CopyPlan plan_copy(const StridedRows& dst, const StridedRows& src) {
  Dimension outer{dst.rows, dst.row_stride, src.row_stride};
  Dimension inner{dst.heads, dst.head_stride, src.head_stride};
  std::int64_t width = dst.head_bytes;
  if (inner.count == 1) std::swap(outer, inner);
  // The dimension with the smaller step goes inside, whatever it is called.
  if (outer.count > 1 && outer.dst < inner.dst && outer.src < inner.src) std::swap(outer, inner);
  if (outer.count == 1 || folds(outer, inner)) {
    inner.count *= outer.count;
    outer = {};
  }
  const auto absorb = [&width](Dimension& dimension) {
    if (dimension.count != 1 && (dimension.dst != width || dimension.src != width)) return;
    width *= dimension.count;
    dimension = {};
  };
  absorb(inner);
  if (inner.count == 1) {
    std::swap(outer, inner);
    absorb(inner);
  }
  if (outer.count > inner.count) std::swap(outer, inner);  // few copies of many pieces
  return {{0, 0, width, inner.count, inner.dst, inner.src}, outer.count, outer.dst, outer.src};
}

void copy_on_host(const StridedRows& dst, const StridedRows& src) {
  const CopyPlan plan = plan_copy(dst, src);
  const Copy2d& piece = plan.piece;
  for (std::int64_t i = 0; i < plan.repeat; ++i)
    for (std::int64_t j = 0; j < piece.count; ++j)
      std::memcpy(dst.data + i * plan.dst_step + j * piece.dst_pitch,
                  src.data + i * plan.src_step + j * piece.src_pitch, static_cast<std::size_t>(piece.width));
}

void copy_on_device(device::Device& device, void* stream, const StridedRows& dst, const StridedRows& src) {
  const CopyPlan plan = plan_copy(dst, src);
  const Copy2d& piece = plan.piece;
  const auto width = static_cast<std::size_t>(piece.width);
  // The driver wants pitches of at least the width; repeated rows (stride 0) go one by one.
  const bool pitched = std::min(piece.dst_pitch, piece.src_pitch) >= piece.width;
  for (std::int64_t i = 0; i < plan.repeat; ++i) {
    std::byte* to = dst.data + i * plan.dst_step;
    const std::byte* from = src.data + i * plan.src_step;
    if (piece.count > 1 && pitched) {
      device.copy_2d_async(to, static_cast<std::size_t>(piece.dst_pitch), from,
                           static_cast<std::size_t>(piece.src_pitch), width,
                           static_cast<std::size_t>(piece.count), stream);
      continue;
    }
    for (std::int64_t j = 0; j < piece.count; ++j)
      device.copy_async(to + j * piece.dst_pitch, from + j * piece.src_pitch, width, stream);
  }
}

}  // namespace bdcp::comm
