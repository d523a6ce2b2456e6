// How many K/V heads' tiles run together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bdcp::plan {

/// What bears on it: of one work list, on one device.
struct HeadBandFacts {
  int heads = 1;                   ///< of K/V
  std::int64_t longest_bytes = 0;  ///< what the tiles of the longest document read, of all heads
  std::int64_t cache_bytes = 0;    ///< a document of fewer bytes gains nothing
  std::int64_t total_cost = 0;     ///< of all tiles, one head
  std::int64_t longest_cost = 0;   ///< of the costliest tile, one head
  int sms = 1;                     ///< that work at the same time
};

/// The tiles of a document that the device's cache cannot hold read the same rows again and again, and the more
/// so the more heads take turns: all tiles of a few heads run first, then those of the next few. At least so
/// many that every SM is busy with the last few heads for as long as their costliest tile takes; a divisor of
/// `heads`.
int heads_at_once(const HeadBandFacts& facts);

}  // namespace bdcp::plan
