#pragma once

#include <algorithm>
#include <cstddef>

#include "device/device.h"
#include "kernel_templates/hopper_args.h"

namespace bdcp::attention {

/// CTAs of a kernel that stays on its SMs until all items are done: no more than there are SMs but for the
/// margin, and at least one.
inline std::size_t persistent_ctas(std::size_t items, const device::DeviceFacts& facts, int sm_margin) {
  const int sms = std::max(facts.sm_count - std::max(sm_margin, 0), 1);
  return std::min(items, static_cast<std::size_t>(sms));
}

/// Items of `tiles` tiles, few heads of `heads` at a time.
inline kernel::HeadBands head_bands(std::size_t tiles, int few, int heads) {
  if (few >= heads)
    return {1 << 30, heads};  // kernels count up to that many; the tiles may be counted on the device
  return {static_cast<int>(tiles) * few, few};
}

}  // namespace bdcp::attention
