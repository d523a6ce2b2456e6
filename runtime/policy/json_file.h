// JSON documents read strictly: no duplicate keys, and errors that name origin, JSON pointer and value.
#pragma once
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded.h"

namespace bdcp {
/// Everything below configs/, by path relative to it ("schema/policy.schema.json").
extern const EmbeddedFile embedded_configs[];
extern const std::size_t embedded_configs_count;
}  // namespace bdcp

namespace bdcp::policy {

/// Text of a file below configs/; empty when there is none of that name.
std::string_view embedded_config(std::string_view name);
/// Names below configs/ that start with `prefix`, sorted.
std::vector<std::string> embedded_config_names(std::string_view prefix);

/// Throws Error(io_error) that starts with `what` ("policy file").
std::string read_text_file(const std::string& path, std::string_view what);
/// Throws Error(invalid_policy): malformed JSON (line and column), duplicate keys (pointer), no object at the
/// root.
nlohmann::json parse_document(std::string_view text, const std::string& origin);

/// One line of JSON, shortened when it is long; never throws, also for text that is not UTF-8.
std::string show(const nlohmann::json& value);
/// The whole value on one line; integral floating-point numbers are written as integers.
std::string canonical(const nlohmann::json& value);

/// The candidate nearest to `word` in edit distance, or empty when none is near enough to be a likely slip.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
/// `; did you mean X?`, or empty.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace bdcp::policy
