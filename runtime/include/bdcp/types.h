// Plain types of the public interface: element types, backends, exchange paths, streams and tensor views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bdcp {

enum class DType : std::uint8_t { f32, f16, bf16 };
enum class BackendKind : std::uint8_t { automatic, hopper, portable, reference, host };
/// How K/V travels between ranks. `local` is what a world of one rank reports.
enum class ExchangePath : std::uint8_t { automatic, allgather, halo, a2a, local };
enum class Direction : std::uint8_t { forward, backward };

std::string_view to_string(DType dtype);          // "f32", "f16", "bf16"
std::string_view to_string(BackendKind backend);  // "auto", "hopper", ...
std::string_view to_string(ExchangePath path);    // "auto", "allgather", ...
std::string_view to_string(Direction direction);  // "fwd", "bwd"
/// Accepts to_string's spellings and the usual synonyms (fp32, float32, half, bfloat16, ...). nullopt: unknown.
std::optional<DType> parse_dtype(std::string_view text);

constexpr std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

/// Where a call runs: on the host (synchronous), or in a CUDA stream (its device and context count, not the
/// calling thread's). Non-owning. A null CUDA handle means the legacy default stream of `device`.
struct Stream {
  void* handle = nullptr;
  int device = -1;  ///< CUDA ordinal; -1: host
  static Stream host() { return {}; }
  static Stream cuda(void* stream, int device_ordinal) { return {stream, device_ordinal}; }
  bool is_host() const { return device < 0; }
};

/// A non-owning view of a token-major tensor [tokens, heads, dim]; strides in elements, dim is contiguous.
/// Memory belongs to the caller: host memory for Stream::host(), device memory otherwise.
template <class Void>
struct BasicTensorView {
  Void* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t tokens = 0, heads = 0, dim = 0;
  std::int64_t token_stride = 0, head_stride = 0;

  /// Contiguous [tokens, heads, dim].
  static BasicTensorView packed(Void* data, DType dtype, std::int64_t tokens, std::int64_t heads,
                                std::int64_t dim) {
    return {data, dtype, tokens, heads, dim, heads * dim, dim};
  }
  operator BasicTensorView<const void>() const {
    return {data, dtype, tokens, heads, dim, token_stride, head_stride};
  }
  /// Rows lie back to back, so that a token range is one contiguous range.
  bool contiguous() const { return head_stride == dim && token_stride == heads * dim; }
};
using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// fp32 [heads, tokens]; stride in elements between heads, tokens contiguous.
template <class Float>
struct BasicLseView {
  Float* data = nullptr;
  std::int64_t heads = 0, tokens = 0, head_stride = 0;
  static BasicLseView packed(Float* data, std::int64_t heads, std::int64_t tokens) {
    return {data, heads, tokens, tokens};
  }
  operator BasicLseView<const float>() const { return {data, heads, tokens, head_stride}; }
};
using LseView = BasicLseView<float>;
using ConstLseView = BasicLseView<const float>;

/// A caller-owned buffer in the memory of the stream's device.
struct BufferView {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// One kind of attention call a step is prepared for.
struct CallShape {
  int heads_q = 0, heads_kv = 0;
  int head_dim = 0;    ///< of Q and K
  int head_dim_v = 0;  ///< of V and O; 0: the same as head_dim
  DType dtype = DType::bf16;
  std::optional<double> scale{};  ///< softmax scale; default head_dim^-0.5; finite and > 0
  double dropout_p = 0.0;         ///< in [0, 1)
  bool backward = true;           ///< prepare the backward kernels too

  int dim_v() const { return head_dim_v ? head_dim_v : head_dim; }
  double softmax_scale() const;
  friend bool operator==(const CallShape&, const CallShape&) = default;
};

}  // namespace bdcp
