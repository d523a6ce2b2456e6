#include "attention/call_checks.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"

namespace bdcp::attention {
namespace {

struct Expected {
  std::int64_t tokens, heads, dim;
  DType dtype;
};

void check_tensor(const char* name, ConstTensorView view, const Expected& expected) {
  const auto fits = view.tokens == expected.tokens && view.heads == expected.heads &&
                    view.dim == expected.dim && view.dtype == expected.dtype;
  require(fits, ErrorCode::invalid_argument, [&] {
    return fmt::format("{} is {} [{}, {}, {}], must be {} [{}, {}, {}] (tokens, heads, dim)", name,
                       to_string(view.dtype), view.tokens, view.heads, view.dim, to_string(expected.dtype),
                       expected.tokens, expected.heads, expected.dim);
  });
  require(view.data != nullptr || view.tokens * view.heads * view.dim == 0, ErrorCode::invalid_argument,
          [&] { return fmt::format("{} has no data", name); });
}

void check_dropout(const CallShape& shape, const DropoutState& dropout) {
  require(shape.dropout_p == 0 || dropout.offset <= 0xffffffffu, ErrorCode::invalid_argument, [&] {
    return fmt::format("dropout.offset is {}, allowed are 0 to 4294967295 (one word of the Philox counter)",
                       dropout.offset);
  });
}

template <class View>
void check_lse(const CallShape& shape, const plan::RankPlan& plan, const View& lse) {
  require(lse.heads == shape.heads_q && lse.tokens == plan.rows, ErrorCode::invalid_argument, [&] {
    return fmt::format("lse is [{}, {}], must be [{}, {}] (heads, tokens)", lse.heads, lse.tokens,
                       shape.heads_q, plan.rows);
  });
}

}  // namespace

plan::Verdict check_shape(const CallShape& shape) {
  if (shape.heads_q <= 0 || shape.heads_kv <= 0 || shape.heads_q % shape.heads_kv != 0)
    return {false, "heads",
            fmt::format("heads_q {} and heads_kv {}: both must be positive and heads_q a multiple of heads_kv",
                        shape.heads_q, shape.heads_kv)};
  if (shape.head_dim <= 0 || shape.head_dim_v < 0)
    return {false, "head_dim",
            fmt::format("head_dim {} and head_dim_v {}: head_dim must be at least 1, head_dim_v at least 0 (0: "
                        "as head_dim)",
                        shape.head_dim, shape.head_dim_v)};
  const double scale = shape.softmax_scale();
  if (!std::isfinite(scale) || !(scale > 0))
    return {false, "scale", fmt::format("scale {}: must be finite and above 0", scale)};
  if (!(shape.dropout_p >= 0 && shape.dropout_p < 1))
    return {false, "dropout", fmt::format("dropout_p {}: must be in [0, 1)", shape.dropout_p)};
  return {};
}

void check_call(const CallShape& shape, const plan::RankPlan& plan, const ForwardCall& call) {
  const std::int64_t hq = shape.heads_q, hk = shape.heads_kv, d = shape.head_dim, dv = shape.dim_v();
  check_tensor("q", call.q, {plan.rows, hq, d, shape.dtype});
  check_tensor("k", call.k, {plan.key_rows, hk, d, shape.dtype});
  check_tensor("v", call.v, {plan.key_rows, hk, dv, shape.dtype});
  if (plan.remote_len > 0) {
    check_tensor("remote_k", call.remote_k, {plan.remote_len, hk, d, shape.dtype});
    check_tensor("remote_v", call.remote_v, {plan.remote_len, hk, dv, shape.dtype});
  }
  check_tensor("out", call.out, {plan.rows, hq, dv, shape.dtype});
  if (call.lse.data) check_lse(shape, plan, call.lse);
  check_dropout(shape, call.dropout);
}

void check_call(const CallShape& shape, const plan::RankPlan& plan, const BackwardCall& call,
                bool payload_f32) {
  require(shape.backward, ErrorCode::invalid_argument,
          "backward of a shape that was prepared with backward = false");
  const std::int64_t hq = shape.heads_q, hk = shape.heads_kv, d = shape.head_dim, dv = shape.dim_v();
  const std::int64_t shared = plan.key_rows - plan.shared_begin;
  const DType payload = payload_f32 ? DType::f32 : shape.dtype;
  check_tensor("q", call.q, {plan.rows, hq, d, shape.dtype});
  check_tensor("k", call.k, {plan.key_rows, hk, d, shape.dtype});
  check_tensor("v", call.v, {plan.key_rows, hk, dv, shape.dtype});
  check_tensor("out", call.out, {plan.rows, hq, dv, shape.dtype});
  check_tensor("dout", call.dout, {plan.rows, hq, dv, shape.dtype});
  check_lse(shape, plan, call.lse);
  require(call.lse.data != nullptr || plan.rows == 0, ErrorCode::invalid_argument,
          "lse has no data: backward needs what forward wrote");
  check_tensor("dq", call.dq, {plan.rows, hq, d, shape.dtype});
  check_tensor("dk", call.dk, {plan.key_rows, hk, d, shape.dtype});
  check_tensor("dv", call.dv, {plan.key_rows, hk, dv, shape.dtype});
  if (shared > 0) {
    check_tensor("shared_dk", call.shared_dk, {shared, hk, d, DType::f32});
    check_tensor("shared_dv", call.shared_dv, {shared, hk, dv, DType::f32});
  }
  if (plan.remote_len > 0) {
    check_tensor("remote_k", call.remote_k, {plan.remote_len, hk, d, shape.dtype});
    check_tensor("remote_v", call.remote_v, {plan.remote_len, hk, dv, shape.dtype});
    check_tensor("remote_dk", call.remote_dk, {plan.remote_len, hk, d, payload});
    check_tensor("remote_dv", call.remote_dv, {plan.remote_len, hk, dv, payload});
  }
  check_dropout(shape, call.dropout);
}

void check_workspace(const BufferView& workspace, std::size_t needed) {
  require(workspace.bytes >= needed, ErrorCode::invalid_argument,
          [&] { return fmt::format("workspace has {} bytes, needs {}", workspace.bytes, needed); });
  require(reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0, ErrorCode::invalid_argument,
          [&] { return fmt::format("workspace starts at {}, which is not a multiple of 16", workspace.data); });
}

void check_stream(const device::Device& device, Stream stream) {
  require(stream.device == device.facts().ordinal, ErrorCode::invalid_argument, [&] {
    return fmt::format("the call's stream is of CUDA device {} (-1: host), it was prepared for device {}",
                       stream.device, device.facts().ordinal);
  });
}

}  // namespace bdcp::attention
