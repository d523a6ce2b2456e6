// KernelSpec: what to compile. Plain values; equal specs give equal bytes for one NVRTC build.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bdcp::jit {

struct KernelSpec {
  std::string kernel;  ///< extern "C" name
  std::string arch;    ///< "sm_80", "sm_90a": exact, with suffix
  /// Named constants of the kernel's Config struct, rendered in this order as `static constexpr <type> <name> =
  /// <value>`.
  struct Constant {
    std::string type, name, value;
    friend bool operator==(const Constant&, const Constant&) = default;
  };
  std::vector<Constant> constants;
  int dynamic_smem = 0;  ///< bytes the launch will ask for
  /// Template file without ".cuh", for templates that hold several kernels; empty: the kernel's name.
  std::string source;

  const std::string& template_stem() const { return source.empty() ? kernel : source; }

  KernelSpec& add(std::string name, long long value) {
    return add_typed("int", std::move(name), std::to_string(value));
  }
  KernelSpec& add_flag(std::string name, bool value) {
    return add_typed("bool", std::move(name), value ? "true" : "false");
  }
  KernelSpec& add_type(std::string name, std::string value) {  ///< renders `using name = value;`
    return add_typed("using", std::move(name), std::move(value));
  }
  KernelSpec& add_typed(std::string type, std::string name, std::string value) {
    constants.push_back({std::move(type), std::move(name), std::move(value)});
    return *this;
  }
  friend bool operator==(const KernelSpec&, const KernelSpec&) = default;
};

/// The one translation unit NVRTC sees: Config, then the template, then nothing else. Throws
/// Error(invalid_argument) for names that are no identifiers and for values that span lines.
std::string render_source(const KernelSpec& spec);

}  // namespace bdcp::jit
