#include "jit/ptxas_log.h"

#include <charconv>
#include <cstddef>

namespace bdcp::jit {
namespace {

// The number that ends right before `unit` in `line`; 0 when there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

}  // namespace

bool parse_ptxas_log(std::string_view log, const std::string& kernel, KernelResources* resources) {
  const std::string entry = "Compiling entry function '" + kernel + "'";
  *resources = {};
  bool inside = false, found = false;
  while (!log.empty()) {
    const std::size_t end = log.find('\n');
    const std::string_view line = log.substr(0, end);
    log = end == std::string_view::npos ? std::string_view() : log.substr(end + 1);
    if (line.find("Compiling entry function '") != std::string_view::npos) {
      inside = line.find(entry) != std::string_view::npos;
      continue;
    }
    if (!inside) continue;
    if (line.find("bytes spill stores") != std::string_view::npos) {
      resources->spill_bytes +=
          number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    } else if (line.find("Used ") != std::string_view::npos &&
               line.find(" registers") != std::string_view::npos) {
      resources->registers = number_before(line, " registers");
      resources->static_smem = number_before(line, " bytes smem");
      found = true;
    }
  }
  return found;
}

}  // namespace bdcp::jit
