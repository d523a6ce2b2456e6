#include "plan/head_bands.h"

namespace bdcp::plan {

int heads_at_once(const HeadBandFacts& facts) {
  if (facts.longest_bytes <= facts.cache_bytes) return facts.heads;
  for (int few = 1; few < facts.heads; ++few) {
    // In doubles: costs are products of rows and keys, and times SMs exceed 64 bits in layouts of billions of
    // tokens.
    if (facts.heads % few == 0 && static_cast<double>(few) * static_cast<double>(facts.total_cost) >=
                                      static_cast<double>(facts.sms) * static_cast<double>(facts.longest_cost))
      return few;
  }
  return facts.heads;
}

}  // namespace bdcp::plan
