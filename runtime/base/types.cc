#include "bdcp/types.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

namespace bdcp {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown";
}

std::string_view to_string(BackendKind backend) {
  switch (backend) {
    case BackendKind::automatic:
      return "auto";
    case BackendKind::hopper:
      return "hopper";
    case BackendKind::portable:
      return "portable";
    case BackendKind::reference:
      return "reference";
    case BackendKind::host:
      return "host";
  }
  return "unknown";
}

std::string_view to_string(ExchangePath path) {
  switch (path) {
    case ExchangePath::automatic:
      return "auto";
    case ExchangePath::allgather:
      return "allgather";
    case ExchangePath::halo:
      return "halo";
    case ExchangePath::a2a:
      return "a2a";
    case ExchangePath::local:
      return "local";
  }
  return "unknown";
}

std::string_view to_string(Direction direction) { return direction == Direction::forward ? "fwd" : "bwd"; }

std::optional<DType> parse_dtype(std::string_view text) {
  std::string name(text);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name == "f32" || name == "fp32" || name == "float32" || name == "float") return DType::f32;
  if (name == "f16" || name == "fp16" || name == "float16" || name == "half") return DType::f16;
  if (name == "bf16" || name == "bfloat16") return DType::bf16;
  return std::nullopt;
}

double CallShape::softmax_scale() const {
  return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace bdcp
