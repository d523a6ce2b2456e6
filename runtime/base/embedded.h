// Files compiled into the library (kernel templates, schema, models); see tools/cmake/BdcpEmbed.cmake.
#pragma once
#include <cstddef>
#include <string_view>

namespace bdcp {
struct EmbeddedFile {
  std::string_view name, text;
};
}  // namespace bdcp
