#include "jit/spec_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jit/content_hash.h"
#include "jit/cubin_format.h"

namespace bdcp::jit {

std::vector<std::string> code_options(const KernelSpec& spec) {
  return {"--gpu-architecture=" + spec.arch, "--std=c++20", "--device-as-default-execution-space"};
}

std::string SpecKey::text(const std::string& nvrtc_build) const {
  return fmt::format("{}nvrtc {}\n{}", before_build, nvrtc_build, after_build);
}

std::string SpecKey::key(const std::string& nvrtc_build) const { return content_hash(text(nvrtc_build)); }

SpecKey make_spec_key(const KernelSpec& spec, SourceSet sources) {
  SpecKey key;
  key.unit = render_source(spec);
  key.headers = include_closure(sources, spec.template_stem() + ".cuh");
  key.before_build = fmt::format("schema {}\nkernel {}\narch {}\noptions {}\n", kCubinSchema, spec.kernel,
                                 spec.arch, fmt::join(code_options(spec), " "));
  for (const EmbeddedFile& header : key.headers)
    key.after_build += fmt::format("header {} {}\n", header.name, content_hash(header.text));
  key.after_build += "unit\n" + key.unit;
  key.base = content_hash(key.before_build + key.after_build);
  return key;
}

}  // namespace bdcp::jit
