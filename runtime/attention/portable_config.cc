#include "attention/portable_config.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace bdcp::attention {
namespace {

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

/// The largest divisor of the GQA ratio up to 16: enough rows from one token to fill tiles of short documents.
int pack_of(const CallShape& shape) {
  const int ratio = shape.heads_q / shape.heads_kv;
  for (int pack = std::min(ratio, 16); pack > 1; --pack)
    if (ratio % pack == 0) return pack;
  return 1;
}

jit::KernelSpec base_spec(const char* kernel, const CallShape& shape, const std::string& arch, bool aligned) {
  jit::KernelSpec spec;
  spec.kernel = kernel;
  spec.arch = arch;
  spec.add_flag("kBf16", shape.dtype == DType::bf16)
      .add("kDim", shape.head_dim)
      .add("kDimV", shape.dim_v())
      .add_flag("kAligned", aligned);
  return spec;
}

/// The constants of kernels that keep a tile of query rows. Config: PortableForwardConfig or PortableDqConfig.
template <class Config>
void add_row_tile(jit::KernelSpec& spec, const CallShape& shape, const Config& c) {
  spec.add("kPack", c.pack)
      .add("kRatio", shape.heads_q / shape.heads_kv)
      .add("kM", c.rows)
      .add("kN", c.keys)
      .add("kWarps", c.warps)
      .add("kCtas", c.ctas);
}

/// What a tile of query rows needs: visible keys per row and needed keys per warp (8 bytes each), the tile
/// (32), what is loaded (8), the head and the document of a pass (8).
int row_tile_smem(int rows, int warps) { return round_up((rows + warps) * 8 + 32 + 8 + 8, 16); }

}  // namespace

int shared_memory_limit(const std::string& arch) {
  const int number = std::atoi(arch.c_str() + std::min<std::size_t>(arch.size(), 3));  // "sm_90a"
  const int kb = number == 80 || number == 87 ? 163 : number >= 90 && number < 120 ? 227 : 99;
  return kb * 1024;
}

int shared_memory_of_sm(const std::string& arch) {
  const int limit = shared_memory_limit(arch) / 1024;
  return (limit == 163 ? 164 : limit == 227 ? 228 : 100) * 1024;
}

int portable_forward_smem(const CallShape& shape, const PortableForwardConfig& c) {
  const int dim = round_up(shape.head_dim, 16), dim_v = round_up(shape.dim_v(), 16);
  const int head = row_tile_smem(c.rows, c.warps) + round_up(c.rows * 16 + 24, 16);  // sums, three barriers
  return head + c.rows * (std::max(dim, dim_v) + 8) * 2 + 2 * c.keys * (dim + 8 + dim_v + 8) * 2;
}

int portable_backward_smem(const CallShape& shape, const PortableBackwardConfig& c) {
  const int dim = round_up(shape.head_dim, 16 * c.warps / 2), dim_v = round_up(shape.dim_v(), 32);
  // Rows per key (16), LSE and delta of two blocks (16 per row), six barriers (8 each), the tile (36), rows and
  // keys loaded (16), the head (4).
  const int head = round_up(round_up(c.keys * 16 + c.rows * 16 + 48 + 36, 8) + 16 + 4, 16);
  return head + (c.keys + 2 * c.rows) * (dim + 8) * 2 + (c.keys + c.dout_stages * c.rows) * (dim_v + 8) * 2 +
         2 * c.keys * (c.rows + 8) * 2;
}

int portable_dq_smem(const CallShape& shape, const PortableDqConfig& c) {
  const int dim = round_up(shape.head_dim, 16), dim_v = round_up(shape.dim_v(), 16);
  const int head = row_tile_smem(c.rows, c.warps) + c.rows * 8;  // LSE and delta
  return head + (c.rows + 2 * c.keys) * (dim + 8) * 2 + (c.rows + c.v_stages * c.keys) * (dim_v + 8) * 2;
}

PortableForwardConfig portable_forward_config(const CallShape& shape, const std::string& arch,
                                              bool short_documents) {
  const int wide = std::max(shape.head_dim, shape.dim_v()), pack = pack_of(shape);
  // In order of preference; the first that fits. Figures: tools/results/NOTES.md.
  std::array<PortableForwardConfig, 6> candidates{};
  if (wide <= 64)
    candidates = {{{pack, 128, short_documents ? 64 : 128, 4, 2},
                   {pack, 128, 64, 4, 2},
                   {pack, 128, 64, 4, 1},
                   {pack, 64, 32, 4, 1}}};
  else if (wide <= 128)
    candidates = {{{pack, 128, short_documents ? 32 : 64, 4, 2},
                   {pack, 128, 32, 4, 2},
                   {pack, 128, 32, 4, 1},
                   {pack, 64, 32, 4, 1}}};
  else if (wide <= 192)
    candidates = {{{pack, 128, 64, 8, 1}, {pack, 64, 64, 4, 1}, {pack, 64, 32, 4, 1}, {pack, 32, 32, 2, 1}}};
  else
    candidates = {{{pack, 128, 64, 8, 1}, {pack, 64, 32, 4, 1}, {pack, 32, 32, 2, 1}}};
  // The kernel waits otherwise where a CTA is alone on its SM, so that two must really fit.
  for (const PortableForwardConfig& c : candidates)
    if (c.ctas * (portable_forward_smem(shape, c) + 1024) <= shared_memory_of_sm(arch)) return c;
  return candidates[0];
}

PortableBackwardConfig portable_backward_config(const CallShape& shape, const std::string& arch) {
  const int wide = std::max(shape.head_dim, shape.dim_v()), limit = shared_memory_limit(arch);
  std::array<PortableBackwardConfig, 4> candidates{};
  if (wide <= 64)
    candidates = {{{128, 128, 8}, {64, 128, 8}, {64, 64, 8}, {32, 64, 8}}};
  else if (wide <= 128)
    candidates = {{{64, 128, 8}, {32, 128, 8}, {32, 64, 8}, {32, 32, 4}}};
  else
    candidates = {{{64, 64, 8}, {32, 64, 8}, {32, 32, 4}, {32, 32, 4, 1}}};
  for (const PortableBackwardConfig& c : candidates)
    if (portable_backward_smem(shape, c) <= limit) return c;
  return candidates[0];
}

PortableDqConfig portable_dq_config(const CallShape& shape, const std::string& arch) {
  const int wide = std::max(shape.head_dim, shape.dim_v()), pack = pack_of(shape);
  // 32 rows per warp halve what is read of K and V, where accumulators and scores of 32 keys fit the registers.
  std::array<PortableDqConfig, 5> candidates{};
  if (wide <= 64)
    candidates = {{{pack, 128, 64, 4, 2}, {pack, 128, 32, 4, 1}}};
  else if (wide <= 128)
    candidates = {{{pack, 128, 32, 4, 2}, {pack, 128, 64, 8, 1}, {pack, 128, 32, 8, 1, 1}}};
  else if (wide <= 192)
    candidates = {
        {{pack, 128, 64, 8, 1}, {pack, 128, 32, 8, 1}, {pack, 64, 32, 4, 1}, {pack, 64, 32, 4, 1, 1}}};
  else
    candidates = {{{pack, 128, 32, 8, 1}, {pack, 64, 32, 4, 1}, {pack, 64, 16, 4, 1, 1}}};
  for (const PortableDqConfig& c : candidates)
    if (c.ctas * (portable_dq_smem(shape, c) + 1024) <= shared_memory_of_sm(arch)) return c;
  return candidates[0];
}

jit::KernelSpec portable_forward_spec(const CallShape& shape, const std::string& arch, bool short_documents,
                                      bool aligned) {
  const PortableForwardConfig c = portable_forward_config(shape, arch, short_documents);
  jit::KernelSpec spec = base_spec("portable_forward", shape, arch, aligned);
  add_row_tile(spec, shape, c);
  spec.dynamic_smem = portable_forward_smem(shape, c);
  spec.add("kSmem", spec.dynamic_smem);
  return spec;
}

jit::KernelSpec portable_backward_spec(const CallShape& shape, const std::string& arch, const Options& options,
                                       bool aligned) {
  const PortableBackwardConfig c = portable_backward_config(shape, arch);
  jit::KernelSpec spec = base_spec("portable_backward", shape, arch, aligned);
  spec.add("kRatio", shape.heads_q / shape.heads_kv)
      .add("kM", c.rows)
      .add("kN", c.keys)
      .add("kWarps", c.warps)
      .add("kCtas", 1)
      .add("kStagesDo", c.dout_stages)
      .add_flag("kPayloadF32", options.payload_f32);
  spec.dynamic_smem = portable_backward_smem(shape, c);
  spec.add("kSmem", spec.dynamic_smem);
  return spec;
}

jit::KernelSpec portable_dq_spec(const CallShape& shape, const std::string& arch, bool aligned) {
  const PortableDqConfig c = portable_dq_config(shape, arch);
  jit::KernelSpec spec = base_spec("portable_backward_dq", shape, arch, aligned);
  add_row_tile(spec, shape, c);
  spec.add("kStagesV", c.v_stages);
  spec.dynamic_smem = portable_dq_smem(shape, c);
  spec.add("kSmem", spec.dynamic_smem);
  return spec;
}

jit::KernelSpec portable_rows_spec(const char* kernel, const CallShape& shape, const std::string& arch,
                                   bool aligned) {
  jit::KernelSpec spec = base_spec(kernel, shape, arch, aligned);
  spec.source = "portable_backward_rows";
  return spec;
}

}  // namespace bdcp::attention
