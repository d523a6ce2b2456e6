// The identity of a shared library's build, read from the file without loading it.
#pragma once

#include <string>

namespace bdcp::jit {

/// GNU build id in hex; for a library without one, "xxh3-" and the hash of its bytes. Empty with `why` filled
/// when the file cannot be read or is no 64-bit ELF file.
std::string build_id_of(const std::string& path, std::string* why);

}  // namespace bdcp::jit
