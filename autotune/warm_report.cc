#include "autotune/warm_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "autotune/exit_code.h"

namespace bdcp::autotune {

std::string to_json(const WarmReport& report) {
  using Json = nlohmann::ordered_json;
  Json entries = Json::array();
  for (const WarmEntry& entry : report.entries) {
    Json item = {{"key", entry.info.key},
                 {"kernel", entry.info.kernel},
                 {"arch", entry.info.arch},
                 {"ms", entry.info.compile_ms},
                 {"registers", entry.info.registers},
                 {"spill_bytes", entry.info.spill_bytes},
                 {"smem_bytes", entry.info.smem_bytes},
                 {"hit", entry.info.hit}};
    if (!entry.error.empty()) item["error"] = entry.error;
    entries.push_back(std::move(item));
  }
  const Json document = {
      {"kernels", report.entries.size()}, {"compiled", report.compiled}, {"hits", report.hits},
      {"failed", report.failed},          {"seconds", report.seconds},   {"cache", report.cache},
      {"entries", std::move(entries)}};
  // Compiler logs may hold bytes that are no UTF-8.
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_text(const WarmReport& report) {
  std::string text =
      fmt::format("{} kernels: {} compiled, {} hits, {} failed, {:.2f} s\ncache: {}\n", report.entries.size(),
                  report.compiled, report.hits, report.failed, report.seconds, report.cache);
  for (const WarmEntry& entry : report.entries) {
    if (entry.error.empty() && entry.info.spill_bytes > 0)
      text += fmt::format("spills: {} for {}: {} bytes\n", entry.info.kernel, entry.info.arch,
                          entry.info.spill_bytes);
    if (!entry.error.empty())
      text += fmt::format("failed: {} for {}: {}\n", entry.info.kernel, entry.info.arch, entry.error);
  }
  return text;
}

int exit_code_of(const WarmReport& report) {
  if (!report.environment.empty()) return kExitEnvironment;
  return report.failed > 0 ? kExitCheckFailed : kExitOk;
}

}  // namespace bdcp::autotune
