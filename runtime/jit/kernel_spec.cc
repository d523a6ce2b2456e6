#include "jit/kernel_spec.h"

#include <fmt/format.h>

#include <cctype>

#include "base/check.h"

namespace bdcp::jit {
namespace {

bool is_identifier(const std::string& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return false;
  for (const unsigned char c : text)
    if (!std::isalnum(c) && c != '_') return false;
  return true;
}

void check_line(const KernelSpec& spec, const std::string& what, const std::string& value) {
  require(!value.empty() && value.find_first_of("\n\r\\") == std::string::npos, ErrorCode::invalid_argument,
          [&] {
            return fmt::format("kernel {}: {} is '{}'; allowed is one line without backslashes", spec.kernel,
                               what, value);
          });
}

}  // namespace

std::string render_source(const KernelSpec& spec) {
  for (const std::string* name : {&spec.kernel, &spec.template_stem()})
    require(is_identifier(*name), ErrorCode::invalid_argument,
            [&] { return fmt::format("kernel name '{}' is not an identifier", *name); });
  std::string text = "namespace bdcp::kernel {\nstruct Config {\n";
  for (const KernelSpec::Constant& constant : spec.constants) {
    require(is_identifier(constant.name), ErrorCode::invalid_argument, [&] {
      return fmt::format("kernel {}: constant '{}' is not an identifier", spec.kernel, constant.name);
    });
    check_line(spec, "the type of " + constant.name, constant.type);
    check_line(spec, "the value of " + constant.name, constant.value);
    if (constant.type == "using")
      text += fmt::format("  using {} = {};\n", constant.name, constant.value);
    else
      text += fmt::format("  static constexpr {} {} = {};\n", constant.type, constant.name, constant.value);
  }
  text += fmt::format("}};\n}}  // namespace bdcp::kernel\n#include \"{}.cuh\"\n", spec.template_stem());
  return text;
}

}  // namespace bdcp::jit
