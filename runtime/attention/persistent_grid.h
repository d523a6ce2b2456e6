#pragma once

#include <algorithm>
#include <cstddef>

#include "device/device.h"

namespace bdcp::attention {

/// CTAs of a kernel that stays on its SMs until all items are done: no more than there are SMs but for the
/// margin, and at least one.
inline std::size_t persistent_ctas(std::size_t items, const device::DeviceFacts& facts, int sm_margin) {
  const int sms = std::max(facts.sm_count - std::max(sm_margin, 0), 1);
  return std::min(items, static_cast<std::size_t>(sms));
}

}  // namespace bdcp::attention
