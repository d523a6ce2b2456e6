// The policy reference as Markdown, from the schema.
#pragma once
#include <string>
#include <string_view>

namespace bdcp::docs {

/// Tables of all policy fields, and of the facts a `groups` entry may match.
std::string policy_markdown();
/// `readme` with the text between its two generated-section markers replaced. Throws Error(invalid_argument)
/// when a marker is missing.
std::string with_policy_reference(std::string_view readme);

}  // namespace bdcp::docs
