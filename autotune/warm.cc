#include "autotune/warm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include "autotune/kernel_list.h"
#include "base/check.h"
#include "base/log.h"
#include "jit/kernel_cache.h"
#include "jit/store_root.h"
#include "policy/model_file.h"

namespace bdcp::autotune {
namespace {

// sm_ and two or three digits, with at most one suffix. Whether NVRTC knows it is asked later.
bool looks_like_arch(const std::string& arch) {
  if (!arch.starts_with("sm_")) return false;
  std::string digits = arch.substr(3);
  if (digits.ends_with('a') || digits.ends_with('f')) digits.pop_back();
  return digits.size() >= 2 && digits.size() <= 3 &&
         std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::vector<CallShape> shapes_of(const std::vector<std::string>& models) {
  std::vector<std::string> names;
  for (const std::string& model : models) {
    if (model == "all")
      for (std::string& shipped : policy::shipped_models()) names.push_back(std::move(shipped));
    else
      names.push_back(model);
  }
  std::vector<CallShape> shapes;
  for (const std::string& name : names)
    for (const CallShape& shape : policy::load_model(name).shapes)
      if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  return shapes;
}

// Empty when failures are the kernels' own.
std::string lacking(const jit::KernelCache& cache, const std::vector<std::string>& archs) {
  if (std::string why = cache.why_no_compiler(); !why.empty()) return "no NVRTC: " + why;
  const std::vector<std::string> known = cache.supported_archs();
  std::vector<std::string> unknown;
  for (const std::string& arch : archs) {
    const std::string plain = arch.substr(0, arch.find_last_of("0123456789") + 1);
    if (std::find(known.begin(), known.end(), plain) == known.end()) unknown.push_back(arch);
  }
  if (unknown.empty()) return {};
  return fmt::format("NVRTC does not know {}; it knows {}", fmt::join(unknown, ", "), fmt::join(known, ", "));
}

}  // namespace

WarmReport warm(const WarmOptions& options, const Env& env) {
  require(!options.archs.empty() && !options.models.empty(), ErrorCode::invalid_argument,
          "at least one arch and one model are needed");
  for (const std::string& arch : options.archs)
    require(looks_like_arch(arch), ErrorCode::invalid_argument,
            [&] { return fmt::format("arch '{}': allowed is sm_<number>, with suffix a or f", arch); });
  const std::vector<CallShape> shapes = shapes_of(options.models);
  std::vector<jit::KernelSpec> specs;
  for (const std::string& arch : options.archs)
    for (jit::KernelSpec& spec : kernel_list(shapes, arch, options.policy))
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(std::move(spec));

  const jit::StoreRoot root = jit::choose_store_root(options.cache, env);
  require(!root.path.empty(), ErrorCode::io_error, [&] {
    return "there is no folder to warm: " + (root.warning.empty() ? "--cache is empty" : root.warning);
  });

  const auto start = std::chrono::steady_clock::now();
  WarmReport report;
  std::vector<std::string> errors;
  std::vector<std::shared_ptr<const jit::CompiledKernel>> kernels;
  jit::CacheStats stats;
  {
    Progress progress(stderr, options.bar, specs.size());
    jit::CacheOptions cache_options;
    cache_options.cache_dir = root.path;
    cache_options.jobs = options.jobs;
    cache_options.on_compile = [&](const std::string& text) { progress.line(text); };
    jit::KernelCache cache(cache_options, env, std::make_shared<const Log>(Log::Level::warn));
    kernels = cache.get_all(specs, &errors, [&](std::size_t done) { progress.step(done); });
    stats = cache.stats();
    report.cache = cache.directory();
    if (stats.failed > 0) report.environment = lacking(cache, options.archs);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (stats.publish_failures > 0)
    report.environment =
        fmt::format("{} kernels could not be written to '{}'", stats.publish_failures, report.cache);

  for (std::size_t i = 0; i < specs.size(); ++i) {
    WarmEntry entry;
    entry.info.kernel = specs[i].kernel;
    entry.info.arch = specs[i].arch;
    entry.error = errors[i];
    if (const auto& kernel = kernels[i]) {
      entry.info.key = kernel->key;
      entry.info.compile_ms = kernel->compile_ms;
      entry.info.registers = kernel->registers;
      entry.info.spill_bytes = kernel->spill_bytes;
      entry.info.smem_bytes = kernel->smem_bytes;
      entry.info.hit = kernel->origin != jit::CompiledKernel::Origin::compiled;
      entry.log = kernel->log;
      ++(entry.info.hit ? report.hits : report.compiled);
    } else {
      ++report.failed;
    }
    report.entries.push_back(std::move(entry));
  }
  return report;
}

}  // namespace bdcp::autotune
