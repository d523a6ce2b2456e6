#include "attention/hopper_backward_config.h"

#include <algorithm>

#include "kernel_templates/hopper_backward_args.h"

namespace bdcp::attention {
namespace {

int panels(int dim) { return (dim + 63) / 64; }

/// f32 per row of dQ, as the kernels' HopperDqShape parts them.
int dq_columns(const CallShape& shape, const HopperBackwardConfig& c) {
  if (c.keys == 64) return panels(shape.head_dim) * 64;
  if (c.rows == 128) return (shape.head_dim + 15) / 16 * 16;
  return shape.head_dim > 64 ? 128 : 64;
}

}  // namespace

HopperBackwardConfig hopper_backward_config(const CallShape& shape, bool whole) {
  HopperBackwardConfig config;
  const int wide = std::max(shape.head_dim, shape.dim_v());
  if (wide <= 64) config.rows = 128;
  if (wide > 128) config.keys = 64, config.q_stages = 2;
  config.sums = !whole || wide > 128;
  config.split = config.sums && wide <= 128 && shape.heads_q > shape.heads_kv;
  return config;
}

int hopper_backward_smem(const CallShape& shape, const HopperBackwardConfig& c) {
  const int k = panels(shape.head_dim), v = panels(shape.dim_v());
  const int passed = c.keys == 64 ? c.keys * c.rows * 2 : c.rows * dq_columns(shape, c) * 4;
  const int buffers = (k + v) * c.keys * 128 + (c.q_stages * k + c.dout_stages * v) * c.rows * 128 +
                      2 * (c.rows / 64) * c.keys * 128 + passed;
  // Slots: who sees the keys, the tile, its document and heads (112), barriers (2 * 8), what is done again
  // (12); blocks: LSE and delta, barriers (2 * 8); LSE as it comes (2 * 32 * 4); other barriers and padding.
  return buffers + c.slots * (c.keys * 16 + 144) + c.q_stages * (c.rows * 8 + 16) + c.dout_stages * 16 + 256 +
         176;
}

int hopper_delta_rows(const CallShape& shape, const HopperBackwardConfig& c) {
  const int room = c.rows * dq_columns(shape, c) * 4 / 2, row = 2 * panels(shape.dim_v()) * 128;
  int rows = 32;
  while (rows * row > room) rows /= 2;
  return rows;
}

std::size_t hopper_dq_sums(const CallShape& shape, const HopperBackwardConfig& config) {
  return static_cast<std::size_t>(config.rows) * static_cast<std::size_t>(dq_columns(shape, config));
}

std::size_t hopper_part_floats(const CallShape& shape, const HopperBackwardConfig& config) {
  const auto columns = [](int dim) { return static_cast<std::size_t>(dim + 15) / 16 * 16; };
  return static_cast<std::size_t>(config.keys) * (columns(shape.head_dim) + columns(shape.dim_v()));
}

jit::KernelSpec hopper_backward_spec(const CallShape& shape, bool whole, const std::string& arch,
                                     const Options& options) {
  const HopperBackwardConfig c = hopper_backward_config(shape, whole);
  jit::KernelSpec spec;
  spec.kernel = "hopper_backward";
  spec.arch = arch;
  spec.dynamic_smem = hopper_backward_smem(shape, c);
  spec.add_flag("kBf16", shape.dtype == DType::bf16)
      .add("kDim", shape.head_dim)
      .add("kDimV", shape.dim_v())
      .add("kRatio", shape.heads_q / shape.heads_kv)
      .add("kM", c.rows)
      .add("kN", c.keys)
      .add("kStages", c.q_stages)
      .add("kStagesDo", c.dout_stages)
      .add("kSlots", c.slots)
      .add_flag("kSums", c.sums)
      .add("kDeltaRows", hopper_delta_rows(shape, c))
      .add_flag("kDescending", options.deterministic && c.sums)
      .add_flag("kOrdered", options.deterministic && c.sums)
      .add_flag("kSplit", c.split)
      .add_flag("kPayloadF32", options.payload_f32)
      .add("kSmem", spec.dynamic_smem);
  return spec;
}

jit::KernelSpec hopper_backward_rows_spec(const char* kernel, const CallShape& shape, const std::string& arch) {
  jit::KernelSpec spec;
  spec.kernel = kernel;
  spec.source = "hopper_backward_rows";
  spec.arch = arch;
  spec.add_flag("kBf16", shape.dtype == DType::bf16)
      .add("kDim", shape.head_dim)
      .add("kDimV", shape.dim_v())
      .add("kM", hopper_backward_config(shape, /*whole=*/false).rows);
  return spec;
}

}  // namespace bdcp::attention
