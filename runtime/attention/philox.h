// Philox4x32-10 for dropout on the host; kernel_templates/reference_common.cuh has the same function.
#pragma once

#include <cmath>
#include <cstdint>

#include "bdcp/runtime.h"

namespace bdcp::attention {

/// Key = seed, counter = (call offset, global query row, global key row, query head); the first output word.
inline std::uint32_t philox(std::uint64_t seed, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                            std::uint32_t c3) {
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0, b = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

/// A pair is dropped where the word is below this: ceil(p * 2^32), so that a word w stands for w / 2^32 < p.
inline std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::fmin(std::ceil(p * 4294967296.0), 4294967295.0));
}

}  // namespace bdcp::attention
