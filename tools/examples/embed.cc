#include <bdcp/attention.h>

#include <cstdlib>
#include <iostream>
#include <vector>

int main() {
  const std::vector<std::int64_t> lengths{300, 40, 600, 84};  // the documents of one packed sequence
  const auto layout = bdcp::DocLayout::from_lengths(lengths);
  const bdcp::CallShape shape{.heads_q = 8, .heads_kv = 2, .head_dim = 64, .dtype = bdcp::DType::f32};
  const auto runtime = bdcp::Runtime::create();  // like every call, throws bdcp::Error
  const auto step = runtime.begin_step(layout, shape, {}, {.device = bdcp::StepOptions::device_host});

  const auto n = layout.tokens();
  std::vector<float> q(n * 8 * 64, 0.1f), k(n * 2 * 64, 0.1f), v(n * 2 * 64, 1.0f), out(q.size()), lse(n * 8);
  const auto view = [&](auto& x, int h) { return bdcp::TensorView::packed(x.data(), shape.dtype, n, h, 64); };
  const auto bytes = step.workspace().forward;
  const bdcp::BufferView scratch{std::aligned_alloc(256, bytes), bytes};
  step.forward({.q = view(q, 8),
                .k = view(k, 2),
                .v = view(v, 2),
                .out = view(out, 8),  // in every layer
                .lse = bdcp::LseView::packed(lse.data(), 8, n),
                .workspace = scratch},
               bdcp::Stream::host());
  std::cout << bdcp::to_string(step.decision().backend) << ": out[0] = " << out[0] << '\n';
  std::free(scratch.data);
}
