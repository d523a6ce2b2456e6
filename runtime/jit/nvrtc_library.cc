// The only file that includes nvrtc.h.
#include "jit/nvrtc_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/handle.h"
#include "jit/elf_build_id.h"

#if BDCP_HAVE_CUDA
#include <nvrtc.h>
#endif

namespace bdcp::jit {
namespace {

namespace fs = std::filesystem;

// The builtins beside `library`, sorted. libnvrtc.so.13.0.88 tells its builtins' version (13.0); libnvrtc.so.13
// leaves the minor version open.
std::vector<std::string> builtins_of(const fs::path& library) {
  const std::string prefix = "libnvrtc-builtins.so.";
  std::string version = library.filename().string();
  version = version.starts_with("libnvrtc.so.") ? version.substr(12) : "";
  const std::size_t minor = version.find('.');
  const std::size_t patch = minor == std::string::npos ? minor : version.find('.', minor + 1);
  version = version.substr(0, patch);
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(library.parent_path(), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string wanted = prefix + version;
    // Exact, or followed by a further version part: 13 must not match 130.
    if (name == wanted || name.starts_with(wanted + (version.empty() ? "" : "."))) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string builtins_build(const fs::path& library) {
  std::string builds;
  std::string last;
  for (const std::string& file : builtins_of(library)) {
    const std::string id = build_id_of(file, nullptr);
    if (id.empty() || id == last) continue;  // a link to the file before
    builds += "+" + id;
    last = id;
  }
  return builds;
}

}  // namespace

#if BDCP_HAVE_CUDA

NvrtcFile locate_nvrtc(const Env& env, std::string* why) {
  NvrtcFile file;
  std::string path =
      device::DynamicLibrary::locate({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
                                     env.libnvrtc.value_or(""), device::cuda_library_folders(env), why);
  if (path.empty()) return file;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  file.build = build_id_of(path, why);
  if (file.build.empty()) return file;
  if (!error) file.build += builtins_build(real);
  file.path = std::move(path);
  return file;
}

// clang-format off
#define BDCP_NVRTC_FUNCTIONS(X)                                                                             \
  X(nvrtcGetErrorString) X(nvrtcVersion) X(nvrtcGetNumSupportedArchs) X(nvrtcGetSupportedArchs)             \
  X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcCompileProgram) X(nvrtcGetProgramLogSize)             \
  X(nvrtcGetProgramLog) X(nvrtcGetCUBINSize) X(nvrtcGetCUBIN)
// clang-format on

struct NvrtcLibrary::Table {
  std::vector<std::shared_ptr<const device::DynamicLibrary>> builtins;
  std::shared_ptr<const device::DynamicLibrary> library;
#define BDCP_DECLARE(name) \
  decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses): a declarator
  BDCP_NVRTC_FUNCTIONS(BDCP_DECLARE)
#undef BDCP_DECLARE
};

namespace {
struct ProgramTraits {
  using type = nvrtcProgram;
  static constexpr type null = nullptr;
  decltype(&::nvrtcDestroyProgram) destroy_program = nullptr;
  void destroy(type value) noexcept { destroy_program(&value); }
};
}  // namespace

NvrtcLibrary::NvrtcLibrary() : table_(std::make_unique<Table>()) {}
NvrtcLibrary::~NvrtcLibrary() = default;
const std::string& NvrtcLibrary::path() const { return table_->library->path(); }

std::shared_ptr<const NvrtcLibrary> NvrtcLibrary::open(const std::string& path, std::string* why) {
  std::shared_ptr<NvrtcLibrary> nvrtc(new NvrtcLibrary);
  Table& table = *nvrtc->table_;
  // NVRTC asks the loader for its builtins by bare name, and the loader does not look beside it (a wheel's
  // folder is on no search path). One that is loaded already answers to that name.
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error)
    for (const std::string& file : builtins_of(real))
      if (auto builtins = device::DynamicLibrary::open({}, file, {}, nullptr))
        table.builtins.push_back(std::move(builtins));
  table.library = device::DynamicLibrary::open({}, path, {}, why);
  if (!table.library) return nullptr;
  std::string missing;
  auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(table.library->symbol(name));
    if (!function) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
#define BDCP_RESOLVE(name) resolve(table.name, #name);
  BDCP_NVRTC_FUNCTIONS(BDCP_RESOLVE)
#undef BDCP_RESOLVE
  if (!missing.empty()) {
    if (why) *why = fmt::format("'{}' lacks {}; NVRTC 12.4 or newer is needed", path, missing);
    return nullptr;
  }
  int major = 0, minor = 0, count = 0;
  nvrtcResult result = table.nvrtcVersion(&major, &minor);
  if (result == NVRTC_SUCCESS) result = table.nvrtcGetNumSupportedArchs(&count);
  if (result == NVRTC_SUCCESS) {
    nvrtc->archs_.resize(static_cast<std::size_t>(count));
    result = table.nvrtcGetSupportedArchs(nvrtc->archs_.data());
  }
  if (result != NVRTC_SUCCESS) {
    if (why) *why = fmt::format("'{}' does not start: {}", path, table.nvrtcGetErrorString(result));
    return nullptr;
  }
  nvrtc->version_ = 1000 * major + 10 * minor;
  return nvrtc;
}

NvrtcLibrary::Outcome NvrtcLibrary::compile(const std::string& name, const std::string& unit,
                                            const std::vector<EmbeddedFile>& headers,
                                            const std::vector<std::string>& options) const {
  // NVRTC wants NUL-terminated strings; embedded texts are views.
  std::vector<std::string> texts;
  std::vector<const char*> header_texts, header_names, option_texts;
  for (const EmbeddedFile& header : headers) {
    texts.emplace_back(header.name);
    texts.emplace_back(header.text);
  }
  for (std::size_t i = 0; i < texts.size(); i += 2) {
    header_names.push_back(texts[i].c_str());
    header_texts.push_back(texts[i + 1].c_str());
  }
  for (const std::string& option : options) option_texts.push_back(option.c_str());

  Outcome outcome;
  auto note = [&](nvrtcResult result, const char* call) {
    if (result != NVRTC_SUCCESS && outcome.error.empty())
      outcome.error = fmt::format("{}: {}", call, table_->nvrtcGetErrorString(result));
    return result == NVRTC_SUCCESS;
  };
  nvrtcProgram raw = nullptr;
  if (!note(table_->nvrtcCreateProgram(&raw, unit.c_str(), name.c_str(), static_cast<int>(headers.size()),
                                       header_texts.data(), header_names.data()),
            "nvrtcCreateProgram"))
    return outcome;
  Handle<ProgramTraits> program(raw, ProgramTraits{table_->nvrtcDestroyProgram});
  const bool compiled =
      note(table_->nvrtcCompileProgram(raw, static_cast<int>(option_texts.size()), option_texts.data()),
           "nvrtcCompileProgram");
  std::size_t bytes = 0;
  if (table_->nvrtcGetProgramLogSize(raw, &bytes) == NVRTC_SUCCESS && bytes > 1) {
    outcome.log.resize(bytes);
    if (table_->nvrtcGetProgramLog(raw, outcome.log.data()) != NVRTC_SUCCESS) outcome.log.clear();
    while (!outcome.log.empty() && outcome.log.back() == '\0') outcome.log.pop_back();
  }
  if (!compiled || !note(table_->nvrtcGetCUBINSize(raw, &bytes), "nvrtcGetCUBINSize")) return outcome;
  outcome.cubin.resize(bytes);
  note(table_->nvrtcGetCUBIN(raw, outcome.cubin.data()), "nvrtcGetCUBIN");
  return outcome;
}

#else

namespace {
constexpr const char* kReason = "built without CUDA headers";
}

NvrtcFile locate_nvrtc(const Env&, std::string* why) {
  (void)&builtins_build;
  if (why) *why = kReason;
  return {};
}

struct NvrtcLibrary::Table {
  std::string path;
};
NvrtcLibrary::NvrtcLibrary() = default;
NvrtcLibrary::~NvrtcLibrary() = default;
const std::string& NvrtcLibrary::path() const { return table_->path; }
std::shared_ptr<const NvrtcLibrary> NvrtcLibrary::open(const std::string&, std::string* why) {
  if (why) *why = kReason;
  return nullptr;
}
NvrtcLibrary::Outcome NvrtcLibrary::compile(const std::string&, const std::string&,
                                            const std::vector<EmbeddedFile>&,
                                            const std::vector<std::string>&) const {
  return {kReason, {}, {}};
}

#endif

}  // namespace bdcp::jit
