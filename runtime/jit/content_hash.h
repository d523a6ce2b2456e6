// Content hashes of the cache (xxHash). Private to jit/.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "jit/kernel_spec.h"

namespace bdcp::jit {

/// XXH3-128 as 32 hex digits.
inline std::string content_hash(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  std::string hex;
  hex.reserve(32);
  for (const XXH64_hash_t half : {hash.high64, hash.low64})
    for (int shift = 60; shift >= 0; shift -= 4) hex += "0123456789abcdef"[half >> shift & 15];
  return hex;
}

/// For maps in memory only: every use compares the whole spec too.
inline std::uint64_t hash_of(const KernelSpec& spec) {
  std::uint64_t hash = static_cast<std::uint64_t>(spec.dynamic_smem);
  auto mix = [&](const std::string& text) { hash = XXH3_64bits_withSeed(text.data(), text.size(), hash); };
  mix(spec.kernel);
  mix(spec.arch);
  mix(spec.source);
  for (const KernelSpec::Constant& constant : spec.constants) {
    mix(constant.type);
    mix(constant.name);
    mix(constant.value);
  }
  return hash;
}

}  // namespace bdcp::jit
