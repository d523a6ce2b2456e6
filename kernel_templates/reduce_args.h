// Arguments of reduce_partials.
#pragma once

#include "kernel_args.h"

namespace bdcp::kernel {

constexpr int kReduceThreads = 256;

/// One of dK and dV. `own` (f32) and every contribution are packed [rows][heads][dim], 16-byte aligned.
struct ReduceTensor {
  const float* own;
  const void* partials;  ///< contribution c starts `partial_stride` elements after contribution c - 1
  Tensor out;            ///< row 0 is the first shared row
  i64 partial_stride;
  int heads, dim;
  int quads;  ///< 1: dim is a multiple of 4 and out takes four elements at once
};

struct ReduceArgs {
  ReduceTensor k, v;
  i64 rows;
  int contributions;
};

}  // namespace bdcp::kernel
