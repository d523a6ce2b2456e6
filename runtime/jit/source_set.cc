#include "jit/source_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/check.h"

namespace bdcp {
extern const EmbeddedFile kernel_sources[];
extern const std::size_t kernel_sources_count;
}  // namespace bdcp

namespace bdcp::jit {
namespace {

std::string_view skip_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

// The name in `#include "name"` or `#include <name>`, else empty.
std::string_view included_name(std::string_view line) {
  line = skip_blanks(line);
  if (!line.starts_with('#')) return {};
  line = skip_blanks(line.substr(1));
  constexpr std::string_view kDirective = "include";
  if (!line.starts_with(kDirective)) return {};
  line = skip_blanks(line.substr(kDirective.size()));
  if (!line.starts_with('"') && !line.starts_with('<')) return {};
  const std::size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == std::string_view::npos ? std::string_view() : line.substr(1, end - 1);
}

}  // namespace

SourceSet embedded_sources() { return {kernel_sources, kernel_sources_count}; }

std::vector<EmbeddedFile> include_closure(SourceSet sources, const std::string& file) {
  auto find = [&](std::string_view name) {
    return std::find_if(sources.begin(), sources.end(), [&](const EmbeddedFile& f) { return f.name == name; });
  };
  auto root = find(file);
  require(root != sources.end(), ErrorCode::invalid_argument,
          [&] { return fmt::format("there is no kernel template '{}' in this build", file); });
  std::vector<EmbeddedFile> closure{*root};
  for (std::size_t next = 0; next < closure.size(); ++next) {
    std::string_view text = closure[next].text;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      auto found = find(included_name(text.substr(0, end)));
      if (found != sources.end() && std::none_of(closure.begin(), closure.end(),
                                                 [&](const EmbeddedFile& f) { return f.name == found->name; }))
        closure.push_back(*found);
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
  }
  std::sort(closure.begin(), closure.end(),
            [](const EmbeddedFile& a, const EmbeddedFile& b) { return a.name < b.name; });
  return closure;
}

}  // namespace bdcp::jit
