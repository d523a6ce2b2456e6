// SHA-256 and HMAC-SHA256 (FIPS 180-4, RFC 2104), for the handshake between ranks. In the tree because a host
// process may carry any version of a cryptographic library, and this much is small.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace bdcp::comm {

/// 32 raw bytes.
std::string sha256(std::string_view data);
std::string hmac_sha256(std::string_view key, std::string_view data);

/// Compares in a time that does not depend on where they differ.
bool same_secret(std::string_view a, std::string_view b);

/// From the kernel's generator. Throws Error(io_error).
std::string random_bytes(std::size_t count);

}  // namespace bdcp::comm
