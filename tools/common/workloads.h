// Document lengths by name or from text. Packs come from configs/workloads, compiled into the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bdcp::tools {

/// Lengths of a pack: a name of configs/workloads, uLEN (as many documents of LEN tokens as fit 32768),
/// oneTOKENS or oneNk (one document). Throws Error(invalid_argument) with the closest name for anything else.
std::vector<std::int64_t> find_pack(std::string_view name);
/// Every name in configs/workloads, sorted.
std::vector<std::string> pack_names();

/// "L1,L2xN,..": token counts, each N times. Throws Error(invalid_argument) naming `field` and the entry.
std::vector<std::int64_t> parse_lengths(std::string_view text, std::string_view field = "lengths");
/// "a,b,c": plain integers. Throws as parse_lengths.
std::vector<std::int64_t> parse_integers(std::string_view text, std::string_view field);

}  // namespace bdcp::tools
