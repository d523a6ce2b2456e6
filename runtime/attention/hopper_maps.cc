#include "attention/hopper_maps.h"

#include <cstdint>

namespace bdcp::attention {
namespace {

constexpr std::int64_t kElement = 2;  // bytes

/// The stride in bytes; any valid one where there is nothing to step to.
std::uint64_t step(std::int64_t stride, std::int64_t count) {
  return count == 1 ? 16 : static_cast<std::uint64_t>(stride * kElement);
}

device::TensorMapSpec rows_map(const ConstTensorView& view, int tile) {
  device::TensorMapSpec spec;
  spec.bf16 = view.dtype == DType::bf16;
  const std::uint64_t row = step(view.token_stride, view.tokens);
  spec.base = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(view.data) -
                                            static_cast<std::uintptr_t>(tile) * row);
  spec.rank = 4;
  spec.dims = {static_cast<std::uint64_t>(view.dim), static_cast<std::uint64_t>(tile),
               static_cast<std::uint64_t>(view.tokens + tile), static_cast<std::uint64_t>(view.heads)};
  spec.strides = {row, row, step(view.head_stride, view.heads)};
  spec.box = {64, static_cast<std::uint32_t>(tile), 1, 1};
  return spec;
}

bool has_rows(const ConstTensorView& view) { return view.data && view.tokens > 0; }

}  // namespace

bool fits_tma(const ConstTensorView& view) {
  constexpr std::int64_t kUnit = 16 / kElement, kMaxStride = std::int64_t{1} << 39;
  if (view.tokens == 0 || !view.data) return true;
  const auto fits = [&](std::int64_t stride, std::int64_t count) {
    return count == 1 || (stride > 0 && stride < kMaxStride / kElement && stride % kUnit == 0);
  };
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && fits(view.token_stride, view.tokens) &&
         fits(view.head_stride, view.heads);
}

void encode_packed(const device::Device& device, const ConstTensorView& view, int tile, int pack,
                   kernel::TensorMap& map) {
  device::TensorMapSpec spec = rows_map(view, tile);
  const std::uint64_t row = spec.strides[0], head = spec.strides[2];
  const auto heads = static_cast<std::uint64_t>(view.heads), packed = static_cast<std::uint64_t>(pack);
  spec.rank = 5;
  spec.dims = {spec.dims[0], packed, spec.dims[1], spec.dims[2], heads / packed};
  spec.strides = {head, row, row, head * packed};
  spec.box = {64, static_cast<std::uint32_t>(pack), static_cast<std::uint32_t>(tile), 1, 1};
  device.encode_tensor_map(spec, &map);
}

void encode_rows(const device::Device& device, const ConstTensorView& view, int tile,
                 const kernel::TensorMap& any, kernel::TensorMap& map) {
  if (has_rows(view))
    device.encode_tensor_map(rows_map(view, tile), &map);
  else
    map = any;
}

void encode_keys(const device::Device& device, const ConstTensorView& local, const ConstTensorView& remote,
                 int tile, const kernel::TensorMap& any, kernel::TensorMap& local_map,
                 kernel::TensorMap& remote_map) {
  if (has_rows(local)) {
    encode_rows(device, local, tile, any, local_map);
    encode_rows(device, remote, tile, local_map, remote_map);
  } else {
    encode_rows(device, remote, tile, any, remote_map);
    local_map = remote_map;
  }
}

}  // namespace bdcp::attention
