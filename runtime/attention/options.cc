#include "attention/options.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace bdcp::attention {

Options options_of(const PolicyValues& values) {
  return {.deterministic = values.attention.deterministic,
          .batch_invariant = values.attention.batch_invariant,
          .payload_f32 = values.exchange.grad_payload == PolicyValues::GradPayload::fp32,
          .unproven = values.attention.backend == BackendKind::hopper};
}

std::vector<Options> options_under(const Policy& policy) {
  constexpr std::array<std::string_view, 4> kFields{"attention.deterministic", "attention.batch_invariant",
                                                    "exchange.grad_payload",
                                                    "attention.backend"};  // what options_of reads
  std::vector<Options> all;
  for (const PolicyValues& values : policy.variants(kFields)) {
    const Options options = options_of(values);
    if (std::find(all.begin(), all.end(), options) == all.end()) all.push_back(options);
  }
  return all;
}

}  // namespace bdcp::attention
