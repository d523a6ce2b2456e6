#include "policy/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace bdcp::policy {

std::vector<std::pair<std::string, std::string>> group_fields(const Policy& policy, const GroupFacts& facts) {
  std::vector<std::pair<std::string, std::string>> out;
  for (PolicyField& field : policy.fields(facts))
    if (field.group) out.emplace_back(std::move(field.pointer), std::move(field.compared));
  return out;
}

std::uint64_t digest(const std::vector<std::pair<std::string, std::string>>& fields) {
  // Lengths keep ("a", "bc") and ("ab", "c") apart.
  std::string text;
  for (const auto& [pointer, value] : fields)
    text += fmt::format("{}:{}={}:{};", pointer.size(), pointer, value.size(), value);
  return XXH3_64bits(text.data(), text.size());
}

std::string group_digest(const Policy& policy, const GroupFacts& facts) {
  return fmt::format("{:016x}", digest(group_fields(policy, facts)));
}

std::string content_hash(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("xxh3:{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace bdcp::policy
