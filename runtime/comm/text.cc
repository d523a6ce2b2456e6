#include "comm/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace bdcp::comm {

std::string ranks_text(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (i > 0) text += ", ";
    if (last > i + 1) {
      text += fmt::format("{}-{}", ranks[i], ranks[last]);
    } else {
      text += fmt::format("{}", ranks[i]);
      last = i;
    }
    i = last + 1;
  }
  return text;
}

std::string shortened(std::string_view value, std::size_t around, std::size_t width) {
  std::string text(value);
  std::string_view head, tail;
  if (value.size() > width) {
    std::size_t begin = around > width / 3 ? around - width / 3 : 0;
    begin = std::min(begin, value.size() - width);
    text = std::string(value.substr(begin, width));
    if (begin > 0) head = "...";
    if (begin + width < value.size()) tail = "...";
  }
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  std::string result = fmt::format("\"{}{}{}\"", head, text, tail);
  if (value.size() > width) result += fmt::format(" ({} bytes)", value.size());
  return result;
}

}  // namespace bdcp::comm
