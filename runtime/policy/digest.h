// What ranks compare of their policies, and what a reload may change without them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bdcp/policy.h"

namespace bdcp::policy {

/// JSON pointer -> compared value of every `group` field, in schema order: the policy's part of a consensus
/// round. Files compared by content appear as their hash, never as a path.
std::vector<std::pair<std::string, std::string>> group_fields(const Policy& policy, const GroupFacts& facts);
/// 64-bit digest of group_fields as 16 hex digits; the same on every machine and build.
std::string group_digest(const Policy& policy, const GroupFacts& facts);
std::uint64_t digest(const std::vector<std::pair<std::string, std::string>>& fields);

/// `group_from` with the local fields of `local_from`: what a reload may switch at once.
PolicyValues merge_local(const PolicyValues& group_from, const PolicyValues& local_from);

/// "xxh3:<128-bit hex>" of a file's bytes.
std::string content_hash(std::string_view text);

}  // namespace bdcp::policy
