// Which backend options a policy asks for.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "bdcp/policy.h"

namespace bdcp::attention {

/// Those of a step whose group has these values.
Options options_of(const PolicyValues& values);
/// Those of any step under `policy`, whichever entries of `groups` match its group. Without repetition.
std::vector<Options> options_under(const Policy& policy);

}  // namespace bdcp::attention
