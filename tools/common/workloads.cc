#include "common/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/embedded.h"

namespace bdcp {
extern const EmbeddedFile embedded_configs[];
extern const std::size_t embedded_configs_count;
}  // namespace bdcp

namespace bdcp::tools {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr std::int64_t kUniformTokens = 32768, kMaxTokens = 2147483647;
/// Lists beyond this are typing errors; they must not take the memory of the machine.
constexpr std::int64_t kMaxEntries = std::int64_t{1} << 26;

std::optional<std::int64_t> to_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// One entry of a list appended to `out`; false if it is not "N" or, with repeats, "NxM".
bool append_entry(std::string_view entry, bool repeats, Lengths& out) {
  const std::size_t x = repeats ? entry.find('x') : std::string_view::npos;
  const auto value = to_integer(entry.substr(0, x));
  const auto count =
      x == std::string_view::npos ? std::optional<std::int64_t>(1) : to_integer(entry.substr(x + 1));
  if (!value || !count || *count < 0 || *count > kMaxEntries - static_cast<std::int64_t>(out.size()))
    return false;
  out.insert(out.end(), static_cast<std::size_t>(*count), *value);
  return true;
}

Lengths parse_list(std::string_view text, std::string_view field, bool repeats) {
  Lengths out;
  for (std::size_t begin = 0, number = 0; begin <= text.size() && !text.empty(); ++number) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view entry = text.substr(begin, end - begin);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    require(append_entry(entry, repeats, out), ErrorCode::invalid_argument, [&] {
      return fmt::format("{}: entry {} is \"{}\"; allowed: {}", field, number, entry,
                         repeats ? "tokens, or tokens x count (4096x16)" : "an integer");
    });
    begin = end + 1;
  }
  return out;
}

std::map<std::string, Lengths> load_packs() {
  std::map<std::string, Lengths> packs;
  for (std::size_t i = 0; i < embedded_configs_count; ++i) {
    const EmbeddedFile& file = embedded_configs[i];
    if (!file.name.starts_with("workloads/")) continue;
    const nlohmann::json document = nlohmann::json::parse(file.text);
    for (const auto& [name, value] : document.at("packs").items()) {
      packs[name] = value.is_string() ? parse_lengths(value.get<std::string>(), name) : value.get<Lengths>();
    }
  }
  return packs;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t next = std::min({row[j] + 1, row[j + 1] + 1, diagonal + (a[i] != b[j])});
      diagonal = std::exchange(row[j + 1], next);
    }
  }
  return row.back();
}

std::string closest(const std::map<std::string, Lengths>& packs, std::string_view name) {
  const auto nearer = [&](const auto& a, const auto& b) {
    return edit_distance(a.first, name) < edit_distance(b.first, name);
  };
  return std::min_element(packs.begin(), packs.end(), nearer)->first;
}

/// uLEN, oneTOKENS and oneNk; empty if the name is none of them.
Lengths generated(std::string_view name) {
  if (name.starts_with("one")) {
    const bool kilo = name.ends_with('k');
    const auto tokens = to_integer(name.substr(3, name.size() - 3 - (kilo ? 1 : 0)));
    if (tokens && *tokens >= 1 && *tokens <= kMaxTokens) return {*tokens * (kilo ? 1024 : 1)};
  } else if (name.starts_with("u")) {
    const auto length = to_integer(name.substr(1));
    if (length && *length >= 1 && *length <= kUniformTokens) {
      return Lengths(static_cast<std::size_t>(kUniformTokens / *length), *length);
    }
  }
  return {};
}

}  // namespace

Lengths parse_lengths(std::string_view text, std::string_view field) { return parse_list(text, field, true); }

Lengths parse_integers(std::string_view text, std::string_view field) { return parse_list(text, field, false); }

Lengths find_pack(std::string_view name) {
  const std::map<std::string, Lengths> packs = load_packs();
  if (const auto found = packs.find(std::string(name)); found != packs.end()) return found->second;
  Lengths lengths = generated(name);
  require(!lengths.empty(), ErrorCode::invalid_argument, [&] {
    return fmt::format(
        "pack is \"{}\"; allowed: a name of configs/workloads (closest: {}), uLEN with LEN up to {}, "
        "oneTOKENS or oneNk",
        name, closest(packs, name), kUniformTokens);
  });
  return lengths;
}

std::vector<std::string> pack_names() {
  std::vector<std::string> names;
  for (const auto& [name, lengths] : load_packs()) names.push_back(name);
  return names;
}

}  // namespace bdcp::tools
