#include "autotune/kernel_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "attention/backend.h"
#include "attention/options.h"
#include "bdcp/error.h"
#include "comm/kv_exchange.h"

namespace bdcp::autotune {

std::vector<jit::KernelSpec> kernel_list(const std::vector<CallShape>& shapes, const std::string& arch,
                                         const Policy& policy) {
  std::vector<jit::KernelSpec> list;
  auto add = [&](std::vector<jit::KernelSpec> specs) {
    for (jit::KernelSpec& spec : specs)
      if (std::find(list.begin(), list.end(), spec) == list.end()) list.push_back(std::move(spec));
  };
  const auto backends = attention::make_backends();
  const std::vector<attention::Options> every_options = attention::options_under(policy);
  for (const CallShape& shape : shapes) {
    bool served = false;
    for (const auto& backend : backends) {
      if (backend->kind() == BackendKind::host) continue;
      for (attention::Options options : every_options) {
        for (const bool payload_f32 : {true, false}) {
          options.payload_f32 = payload_f32;
          // A backend that does not take the shape leaves it to the next.
          std::vector<jit::KernelSpec> specs = backend->required_kernels(shape, arch, true, options);
          served |= !specs.empty();
          add(std::move(specs));
        }
      }
    }
    if (!served)
      throw Error(ErrorCode::unsupported,
                  fmt::format("no CUDA backend takes heads {}:{}, head_dim {}, {} on {}", shape.heads_q,
                              shape.heads_kv, shape.head_dim, to_string(shape.dtype), arch));
    for (const bool payload_f32 : {true, false}) add(comm::required_kernels(shape.dtype, payload_f32, arch));
  }
  return list;
}

}  // namespace bdcp::autotune
