#include "jit/compiler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "bdcp/error.h"

namespace bdcp::jit {
namespace {

std::string version_text(const NvrtcLibrary& nvrtc) {
  return fmt::format("NVRTC {}.{}", nvrtc.version() / 1000, nvrtc.version() % 1000 / 10);
}

// Options that leave the bytes alone; part of no key.
std::vector<std::string> quiet_options(const NvrtcLibrary& nvrtc) {
  // The default would call setrlimit for the whole process.
  std::vector<std::string> options{"--ptxas-options=--verbose", "--modify-stack-limit=false"};
  // NVRTC's own cache (since 12.9) would initialise CUDA in a process that only compiles.
  if (nvrtc.version() >= 12090) options.push_back("--no-cache");
  return options;
}

// "libnvrtc-builtins.so.13.0" as the log names it, else empty.
std::string builtins_in(const std::string& log) {
  const std::size_t begin = log.find("libnvrtc-builtins");
  if (begin == std::string::npos) return {};
  std::string name = log.substr(begin, log.find_first_of(" \n\r\t'\":,", begin) - begin);
  while (!name.empty() && name.back() == '.') name.pop_back();
  return name;
}

}  // namespace

void check_arch(const std::string& arch, const std::vector<int>& archs, const std::string& nvrtc) {
  int number = 0;
  const char* end = arch.data() + arch.size();
  std::string suffix;
  bool ok = arch.starts_with("sm_");
  if (ok) {
    const auto parsed = std::from_chars(arch.data() + 3, end, number);
    suffix.assign(parsed.ptr, end);
    ok = parsed.ec == std::errc() && std::find(archs.begin(), archs.end(), number) != archs.end() &&
         (suffix.empty() || (suffix == "a" && number >= 90) || (suffix == "f" && number >= 100));
  }
  if (ok) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("arch '{}': {} compiles for sm_{}, with suffix 'a' from sm_90 and 'f' from sm_100 on",
                          arch, nvrtc, fmt::join(archs, ", sm_")));
}

Compiler::Compiler(Env env) : env_(std::move(env)) {}

const NvrtcFile& Compiler::file() {
  std::call_once(located_, [&] { file_ = locate_nvrtc(env_, &why_not_found_); });
  return file_;
}

const std::string& Compiler::nvrtc_build() { return file().build; }

std::shared_ptr<const NvrtcLibrary> Compiler::try_library(std::string* why) {
  if (!file().found()) {
    *why = why_not_found_;
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  if (!library_) library_ = NvrtcLibrary::open(file_.path, why);
  return library_;
}

std::shared_ptr<const NvrtcLibrary> Compiler::library() {
  std::string why;
  if (auto nvrtc = try_library(&why)) return nvrtc;
  throw Error(ErrorCode::library_missing,
              fmt::format("kernels cannot be compiled: no NVRTC ({}); install the CUDA toolkit or the "
                          "nvidia-cuda-nvrtc wheel, or set BDCP_LIBNVRTC",
                          why),
              ErrorScope::process);
}

std::string Compiler::why_unavailable() {
  std::string why;
  return try_library(&why) ? std::string() : why;
}

std::vector<std::string> Compiler::supported_archs() {
  std::vector<std::string> names;
  for (const int arch : library()->archs()) names.push_back(fmt::format("sm_{}", arch));
  return names;
}

Compiler::Result Compiler::compile(const KernelSpec& spec, const SpecKey& key) {
  const std::shared_ptr<const NvrtcLibrary> nvrtc = library();
  check_arch(spec.arch, nvrtc->archs(), version_text(*nvrtc));
  std::vector<std::string> options = code_options(spec);
  for (std::string& option : quiet_options(*nvrtc)) options.push_back(std::move(option));

  const auto start = std::chrono::steady_clock::now();
  NvrtcLibrary::Outcome outcome = nvrtc->compile(spec.kernel + ".cu", key.unit, key.headers, options);
  Result result;
  result.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  auto fail = [&](ErrorCode code, const std::string& message) {
    throw Error(code, message).with_call("nvrtcCompileProgram").with_log(outcome.log);
  };
  if (!outcome.error.empty()) {
    if (const std::string builtins = builtins_in(outcome.log + outcome.error); !builtins.empty())
      fail(ErrorCode::library_missing,
           fmt::format(
               "NVRTC at {} does not find {}, which belongs beside it; complete that installation or set "
               "BDCP_LIBNVRTC to a complete one",
               nvrtc->path(), builtins));
    fail(ErrorCode::compile_failed,
         fmt::format("kernel {} for {} does not compile: {} ({}, options {})", spec.kernel, spec.arch,
                     outcome.error, version_text(*nvrtc), fmt::join(options, " ")));
  }
  if (outcome.cubin.size() < 4 || std::memcmp(outcome.cubin.data(),
                                              "\x7f"
                                              "ELF",
                                              4) != 0)
    fail(ErrorCode::compile_failed, fmt::format("kernel {} for {}: {} gave no cubin ({} bytes)", spec.kernel,
                                                spec.arch, version_text(*nvrtc), outcome.cubin.size()));
  if (!parse_ptxas_log(outcome.log, spec.kernel, &result.resources))
    fail(ErrorCode::compile_failed,
         fmt::format("{}.cuh has no extern \"C\" __global__ function {}", spec.template_stem(), spec.kernel));
  result.cubin = std::move(outcome.cubin);
  result.log = std::move(outcome.log);
  return result;
}

}  // namespace bdcp::jit
