// Which tile shapes the portable kernels take for a call shape and an architecture. Pure.
#pragma once

#include <string>

#include "attention/backend.h"
#include "jit/kernel_spec.h"
#include "plan/tile_schedule.h"

namespace bdcp::attention {

struct PortableForwardConfig {
  int pack = 1;  ///< q heads side by side in the rows of a tile
  int rows = 128, keys = 64, warps = 4, ctas = 2;
  int tokens() const { return rows / pack; }
};

struct PortableBackwardConfig {
  int rows = 64, keys = 128, warps = 8;
  int dout_stages = 2;  ///< buffers for dO
};

/// dQ by query tiles, for `attention.deterministic`.
struct PortableDqConfig {
  int pack = 1;  ///< q heads side by side in the rows of a tile
  int rows = 128, keys = 32, warps = 4, ctas = 2;
  int v_stages = 2;  ///< buffers for V
  int tokens() const { return rows / pack; }
};

/// Shared memory one CTA may have: 99 KB on 8.6, 8.9 and 12.x, 163 KB on 8.0 and 8.7, 227 KB on 9.0 and 10.x.
int shared_memory_limit(const std::string& arch);
/// What an SM has for all of its CTAs, of which each takes 1 KB beyond its own.
int shared_memory_of_sm(const std::string& arch);

/// `short_documents`: the layout class is short_docs or tiny.
PortableForwardConfig portable_forward_config(const CallShape& shape, const std::string& arch,
                                              bool short_documents);
PortableBackwardConfig portable_backward_config(const CallShape& shape, const std::string& arch);
PortableDqConfig portable_dq_config(const CallShape& shape, const std::string& arch);

/// Bytes of dynamic shared memory; the kernels assert the same figure.
int portable_forward_smem(const CallShape& shape, const PortableForwardConfig& config);
int portable_backward_smem(const CallShape& shape, const PortableBackwardConfig& config);
int portable_dq_smem(const CallShape& shape, const PortableDqConfig& config);

/// `aligned`: every row of every tensor starts on 16 bytes.
jit::KernelSpec portable_forward_spec(const CallShape& shape, const std::string& arch, bool short_documents,
                                      bool aligned);
jit::KernelSpec portable_backward_spec(const CallShape& shape, const std::string& arch, const Options& options,
                                       bool aligned);
jit::KernelSpec portable_dq_spec(const CallShape& shape, const std::string& arch, bool aligned);
/// kernel: "portable_backward_delta" or "portable_backward_round".
jit::KernelSpec portable_rows_spec(const char* kernel, const CallShape& shape, const std::string& arch,
                                   bool aligned);

}  // namespace bdcp::attention
