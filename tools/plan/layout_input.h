// The documents of the command line as a DocLayout.
#pragma once

#include "bdcp/doc_layout.h"
#include "options.h"

namespace bdcp::tools {

/// Throws Error(invalid_argument) for text or files that are no layout at all, Error(invalid_layout) for lists
/// no layout can have, Error(unsupported) for rectangular ones at world > 1.
DocLayout read_layout(const PlanOptions& options);

}  // namespace bdcp::tools
