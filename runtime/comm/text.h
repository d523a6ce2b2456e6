// Short texts for error messages about ranks.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace bdcp::comm {

/// "rank 3", "ranks 0-2, 5". `ranks` ascending, not empty.
std::string ranks_text(std::span<const int> ranks);
/// At most about `width` characters, printable only, in quotes; a long value shows the part around `around`.
std::string shortened(std::string_view value, std::size_t around = 0, std::size_t width = 72);

}  // namespace bdcp::comm
