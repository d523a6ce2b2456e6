#include "policy/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>

#include "bdcp/error.h"

namespace bdcp::policy {
namespace {

using nlohmann::json;

// Follows the parser through the document so that a duplicate key can be named by its pointer.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(const std::string& origin) : origin_(origin) {}

  bool operator()(int, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        frames_.push_back({event == json::parse_event_t::array_start, 0, {}, {}});
        break;
      case json::parse_event_t::key:
        frames_.back().key = parsed.get<std::string>();
        if (!frames_.back().seen.insert(frames_.back().key).second)
          throw Error(ErrorCode::invalid_policy,
                      fmt::format("{}: {}: duplicate key; allowed: each key once", origin_, pointer()));
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        frames_.pop_back();
        [[fallthrough]];
      case json::parse_event_t::value:
        if (!frames_.empty()) ++frames_.back().index;
        break;
    }
    return true;
  }

 private:
  struct Frame {
    bool array;
    std::size_t index;
    std::string key;
    std::set<std::string> seen;
  };
  std::string pointer() const {
    json::json_pointer path;
    for (const Frame& frame : frames_) {
      if (frame.array)
        path.push_back(std::to_string(frame.index));
      else
        path.push_back(frame.key);
    }
    return path.to_string();
  }
  const std::string& origin_;
  std::vector<Frame> frames_;
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string dump_line(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string_view embedded_config(std::string_view name) {
  for (std::size_t i = 0; i < embedded_configs_count; ++i)
    if (embedded_configs[i].name == name) return embedded_configs[i].text;
  return {};
}

std::vector<std::string> embedded_config_names(std::string_view prefix) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < embedded_configs_count; ++i)
    if (embedded_configs[i].name.starts_with(prefix)) names.emplace_back(embedded_configs[i].name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text_file(const std::string& path, std::string_view what) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::io_error, fmt::format("{} \"{}\" cannot be read: {}", what, path, why));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail("it is a folder");  // opening one would succeed
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(errno ? std::generic_category().message(errno) : "open failed");
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) fail("read failed");
  return std::move(text).str();
}

nlohmann::json parse_document(std::string_view text, const std::string& origin) {
  json document;
  try {
    document = json::parse(text.begin(), text.end(), DuplicateKeys(origin));
  } catch (const json::exception& error) {
    // nlohmann's texts begin with "[json.exception.parse_error.101] ".
    const std::string_view full = error.what();
    const std::size_t end = full.find("] ");
    throw Error(ErrorCode::invalid_policy,
                fmt::format("{}: not valid JSON: {}", origin,
                            end == std::string_view::npos ? full : full.substr(end + 2)));
  }
  if (!document.is_object())
    throw Error(ErrorCode::invalid_policy,
                fmt::format("{}: /: {} is not allowed; allowed: an object", origin, show(document)));
  return document;
}

std::string show(const nlohmann::json& value) {
  constexpr std::size_t kLongest = 120;
  std::string text = dump_line(value);
  if (text.size() > kLongest) text = text.substr(0, kLongest - 3) + "...";
  return text;
}

std::string canonical(const nlohmann::json& value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: integers up to here are exact
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::floor(number) == number && std::abs(number) <= kExact)
      return std::to_string(static_cast<long long>(number));
  }
  return dump_line(value);
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    // Replacing every letter is not a slip.
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format("; did you mean \"{}\"?", best);
}

}  // namespace bdcp::policy
