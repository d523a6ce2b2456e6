// The result of `warm` for machines and for people.
#pragma once

#include <string>

#include "autotune/warm.h"

namespace bdcp::autotune {

/// One JSON object: kernels, compiled, hits, failed, seconds, cache, entries[]; failed entries carry `error`.
std::string to_json(const WarmReport& report);
/// A few lines; every failure with its compiler log.
std::string to_text(const WarmReport& report);
/// 0, 4 when this machine lacks something, 5 when a kernel does not compile.
int exit_code_of(const WarmReport& report);

}  // namespace bdcp::autotune
