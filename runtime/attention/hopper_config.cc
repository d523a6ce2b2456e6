#include "attention/hopper_config.h"

#include <algorithm>

namespace bdcp::attention {
namespace {

/// The largest divisor of the GQA ratio up to 16: enough rows from one token to fill tiles of short documents.
int pack_of(const CallShape& shape) {
  const int ratio = shape.heads_q / shape.heads_kv;
  for (int pack = std::min(ratio, 16); pack > 1; --pack)
    if (ratio % pack == 0) return pack;
  return 1;
}

int panels(int dim) { return (dim + 63) / 64; }

}  // namespace

HopperLayout hopper_layout(plan::LayoutClass layout_class) {
  switch (layout_class) {
    case plan::LayoutClass::single:
    case plan::LayoutClass::long_docs:
      return HopperLayout::long_docs;
    case plan::LayoutClass::mixed:
      return HopperLayout::mixed;
    case plan::LayoutClass::short_docs:
    case plan::LayoutClass::tiny:
      return HopperLayout::short_docs;
  }
  return HopperLayout::mixed;
}

HopperForwardConfig hopper_forward_config(const CallShape& shape, HopperLayout layout) {
  const int wide = std::max(shape.head_dim, shape.dim_v()), pack = pack_of(shape);
  // Registers bound the keys of a block (S, P and O of 64 rows are held), then shared memory the slots.
  // Figures: tools/results/NOTES.md.
  if (wide <= 64) return {pack, 3, 128, 2, layout == HopperLayout::short_docs ? 3 : 2};
  if (wide <= 128) {
    if (layout == HopperLayout::long_docs) return {pack, 2, 160, 2, 2};
    // Short documents are bound by memory: a tile that few keys fill makes room for more of them in flight.
    if (layout == HopperLayout::short_docs && pack >= 2) return {pack, 2, 64, 2, 4};
    return {pack, 2, 128, 2, 3};
  }
  if (wide <= 192) return {pack, 2, shape.dim_v() <= 128 ? 128 : 96, 2, 1};
  return {pack, 2, 80, 2, 1};
}

int hopper_forward_smem(const CallShape& shape, const HopperForwardConfig& c) {
  const int k = panels(shape.head_dim), v = panels(shape.dim_v());
  // Per slot: Q or O, the tile (36), barriers (4 * 8), padding; per stage: K and V, barriers (4 * 8).
  return c.slots * (std::max(k, v) * c.rows() * 128 + 80) + c.stages * ((k + v) * c.keys * 128 + 32);
}

std::size_t hopper_state_bytes(const CallShape& shape, const HopperForwardConfig& config) {
  const auto columns = static_cast<std::size_t>(shape.dim_v() + 15) / 16 * 16;
  return static_cast<std::size_t>(config.rows()) * 2 * (columns / 2 + 4) * sizeof(float);
}

jit::KernelSpec hopper_forward_spec(const CallShape& shape, const std::string& arch, HopperLayout layout,
                                    bool staged) {
  const HopperForwardConfig c = hopper_forward_config(shape, layout);
  jit::KernelSpec spec;
  spec.kernel = "hopper_forward";
  spec.arch = arch;
  spec.dynamic_smem = hopper_forward_smem(shape, c);
  spec.add_flag("kBf16", shape.dtype == DType::bf16)
      .add("kDim", shape.head_dim)
      .add("kDimV", shape.dim_v())
      .add("kPack", c.pack)
      .add("kRatio", shape.heads_q / shape.heads_kv)
      .add("kTokens", c.tokens())
      .add("kWgs", c.warpgroups)
      .add("kN", c.keys)
      .add("kStages", c.stages)
      .add("kSlots", c.slots)
      .add("kCtas", 1)
      .add_flag("kStaged", staged)
      .add("kSmem", spec.dynamic_smem);
  return spec;
}

}  // namespace bdcp::attention
