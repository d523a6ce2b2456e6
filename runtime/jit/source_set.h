// The kernel templates a cache compiles from: embedded in the library, or a test's own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/embedded.h"

namespace bdcp::jit {

/// Non-owning: the files must outlive every user.
using SourceSet = std::span<const EmbeddedFile>;

/// The templates of kernel_templates/, compiled into the library.
SourceSet embedded_sources();

/// `file` and everything it includes from the set, directly or not, sorted by name. Includes that are not in
/// the set are left to the compiler to report. Throws Error(invalid_argument) when `file` itself is missing.
std::vector<EmbeddedFile> include_closure(SourceSet sources, const std::string& file);

}  // namespace bdcp::jit
