// SpecKey: the content key of a spec: everything that changes the bytes of its cubin, and nothing else.
#pragma once

#include <string>
#include <vector>

#include "jit/kernel_spec.h"
#include "jit/source_set.h"

namespace bdcp::jit {

/// Options that change the code, and so are part of the key. (Log and cache options are not.)
std::vector<std::string> code_options(const KernelSpec& spec);

struct SpecKey {
  std::string unit;                   ///< what NVRTC compiles
  std::vector<EmbeddedFile> headers;  ///< include closure of the template
  std::string base;                   ///< 32 hex digits: the key without the NVRTC build

  /// The text whose hash is the key for one NVRTC build.
  std::string text(const std::string& nvrtc_build) const;
  /// 32 hex digits.
  std::string key(const std::string& nvrtc_build) const;

  std::string before_build, after_build;  ///< text() = before + build line + after
};

SpecKey make_spec_key(const KernelSpec& spec, SourceSet sources);

}  // namespace bdcp::jit
