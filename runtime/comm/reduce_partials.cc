#include "comm/reduce_partials.h"

#include <algorithm>
#include <cstdint>

#include "comm/element.h"
#include "kernel_templates/reduce_args.h"

namespace bdcp::comm {
namespace {

float load(const std::byte* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return reinterpret_cast<const float*>(data)[index];
    case DType::f16:
      return from_f16(reinterpret_cast<const std::uint16_t*>(data)[index]);
    case DType::bf16:
      break;
  }
  return from_bf16(reinterpret_cast<const std::uint16_t*>(data)[index]);
}

void store(void* data, DType dtype, std::int64_t index, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<std::uint16_t*>(data)[index] = dtype == DType::f16 ? to_f16(value) : to_bf16(value);
  }
}

/// True if four elements of `out` that start at a multiple of four can be stored at once.
bool quads(const TensorView& out) {
  const std::uint64_t bytes = 4 * size_of(out.dtype);
  return out.dim % 4 == 0 && out.token_stride % 4 == 0 && out.head_stride % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(out.data) % bytes == 0;
}

kernel::ReduceTensor tensor_of(const PartialSum& sum) {
  return {sum.own,
          sum.partials,
          {sum.out.data, sum.out.token_stride, sum.out.head_stride},
          static_cast<kernel::i64>(sum.stride / size_of(sum.payload)),
          static_cast<int>(sum.out.heads),
          static_cast<int>(sum.out.dim),
          quads(sum.out) ? 1 : 0};
}

}  // namespace

void sum_on_host(const PartialSum& sum) {
  const TensorView& out = sum.out;
  for (std::int64_t row = 0, index = 0; row < out.tokens; ++row)
    for (std::int64_t head = 0; head < out.heads; ++head)
      for (std::int64_t d = 0; d < out.dim; ++d, ++index) {
        float value = sum.own[index];
        for (int c = 0; c < sum.contributions; ++c)
          value += load(sum.partials + static_cast<std::size_t>(c) * sum.stride, sum.payload, index);
        store(out.data, out.dtype, row * out.token_stride + head * out.head_stride + d, value);
      }
}

jit::KernelSpec reduce_spec(DType dtype, DType payload, const std::string& arch) {
  jit::KernelSpec spec;
  spec.kernel = "reduce_partials";
  spec.arch = arch;
  spec.add("kDtype", static_cast<int>(dtype)).add("kPayload", static_cast<int>(payload));
  return spec;
}

void sum_on_device(device::Device& device, const device::LoadedKernel& kernel, const PartialSum& dk,
                   const PartialSum& dv, void* stream) {
  kernel::ReduceArgs args{tensor_of(dk), tensor_of(dv), dk.out.tokens, dk.contributions};
  // A block's x spans a row in groups of four elements, its y takes as many rows as fit.
  const std::int64_t widest = std::max(dk.out.heads * dk.out.dim, dv.out.heads * dv.out.dim);
  const std::int64_t groups = (widest + 3) / 4;
  const auto x = static_cast<unsigned>(std::min<std::int64_t>(kernel::kReduceThreads, (groups + 31) / 32 * 32));
  const unsigned y = kernel::kReduceThreads / x;
  const std::int64_t blocks = (dk.out.tokens + y - 1) / y;
  const std::int64_t most = std::int64_t{16} * device.facts().sm_count;
  void* params[] = {&args};
  device.launch(kernel, {static_cast<unsigned>(std::min(blocks, most)), 2, 1}, {x, y, 1}, 0, stream, params);
}

}  // namespace bdcp::comm
