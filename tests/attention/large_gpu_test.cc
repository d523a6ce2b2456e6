// Tensors of more than 2^31 elements, and documents of millions of keys: 64-bit offsets everywhere
// (Dao-AILab/flash-attention#767, #2214: illegal access; #2662: tiles decoded wrong at 2^22 keys).
#include <gtest/gtest.h>

#include <cmath>

#include "attention/device_harness.h"

namespace bdcp::test {
namespace {

using attention::Part;

class LargeGpu : public BackendGpu {
 protected:
  device::Buffer allocate(std::size_t bytes) {
    device::Buffer buffer = device_->allocate(bytes);
    device_->fill_async(buffer.get(), 0xFF, bytes, nullptr);
    return buffer;
  }
  Stream stream() const { return Stream::cuda(nullptr, device_->facts().ordinal); }
  void run_both(const attention::PreparedAttention& prepared, const attention::ForwardCall& forward,
                const attention::BackwardCall& backward) {
    prepared.forward(forward, Part::local, stream());
    prepared.backward(backward, Part::local, stream());
    device_->synchronize(nullptr);
  }
};

/// What would take the reference kernels minutes.
class LargeFastGpu : public LargeGpu {};

std::vector<BackendKind> fast_backends() {
  std::vector<BackendKind> kinds = cuda_backends();
  std::erase(kinds, BackendKind::reference);
  return kinds;
}

// The same documents over and over: what lies past 2^31 elements must equal what lies at the front.
TEST_P(LargeFastGpu, RowsPastTwoToTheThirtyOneElements) {
  const CallShape shape = make_shape(64, 64, 128, DType::bf16);
  ASSERT_EQ(refuses(shape), "");
  const std::vector<std::int64_t> period{300, 77, 5, 130};
  constexpr std::int64_t kPeriod = 512, kPeriods = 540, kRows = kPeriod * kPeriods;
  const std::int64_t width = std::int64_t{shape.heads_q} * shape.head_dim;
  ASSERT_GT(kRows * width, std::int64_t{1} << 31);
  Case part;
  part.layout = from_lengths(period, 0, "period");
  part.shape = shape;
  const Data data = make_data(part);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < kPeriods; ++i) lengths.insert(lengths.end(), period.begin(), period.end());
  const auto prepared = prepare_on_device(shape, single_rank_plan(from_lengths(lengths, 0, "large")));
  const std::size_t bytes = static_cast<std::size_t>(kRows * width) * 2, block = bytes / kPeriods;
  const std::size_t need = 8 * bytes + prepared->backward_workspace() + (std::size_t{2} << 30);
  if (device_->facts().total_memory < need)
    GTEST_SKIP() << "needs " << (need >> 30) << " GiB of device memory, there are "
                 << (device_->facts().total_memory >> 30);
  std::vector<device::Buffer> buffers;
  try {
    for (int i = 0; i < 8; ++i) buffers.push_back(allocate(bytes));
    buffers.push_back(allocate(static_cast<std::size_t>(kRows * shape.heads_q) * sizeof(float)));
    buffers.push_back(allocate(prepared->backward_workspace()));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  int next = 0;
  for (const HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) {
    char* const to = static_cast<char*>(buffers[static_cast<std::size_t>(next++)].get());
    device_->upload(to, const_cast<HostTensor*>(x)->data(), block);
    for (std::size_t at = block; at < bytes; at += block) device_->copy_async(to + at, to, block, nullptr);
  }
  const auto view = [&](int i) {
    return TensorView::packed(buffers[static_cast<std::size_t>(i)].get(), shape.dtype, kRows, shape.heads_q,
                              128);
  };
  attention::ForwardCall forward;
  attention::BackwardCall backward;
  forward.q = backward.q = view(0);
  forward.k = backward.k = view(1);
  forward.v = backward.v = view(2);
  backward.dout = view(3);
  forward.out = view(4);
  backward.out = view(4);
  backward.dq = view(5);
  backward.dk = view(6);
  backward.dv = view(7);
  forward.lse = LseView::packed(static_cast<float*>(buffers[8].get()), shape.heads_q, kRows);
  backward.lse = {forward.lse.data, shape.heads_q, kRows, kRows};
  forward.workspace = backward.workspace = {buffers[9].get(), prepared->backward_workspace()};
  run_both(*prepared, forward, backward);

  const auto rows_of = [&](std::int64_t index) {
    Outputs o = make_outputs(part);
    int i = 4;
    for (HostTensor* x : {&o.out, &o.dq, &o.dk, &o.dv})
      device_->download(x->data(),
                        static_cast<char*>(buffers[static_cast<std::size_t>(i++)].get()) +
                            static_cast<std::size_t>(index) * block,
                        block);
    for (std::int64_t h = 0; h < shape.heads_q; ++h)
      device_->download(&o.lse.data[static_cast<std::size_t>(h * kPeriod)],
                        forward.lse.data + h * kRows + index * kPeriod, kPeriod * sizeof(float));
    return o;
  };
  const Outputs first = rows_of(0);
  expect_oracle(part, data, first);
  for (const std::int64_t index : {std::int64_t{1}, (std::int64_t{1} << 30) / (kPeriod * width),
                                   (std::int64_t{1} << 31) / (kPeriod * width) - 1,
                                   (std::int64_t{1} << 31) / (kPeriod * width), kPeriods - 1}) {
    SCOPED_TRACE("period " + std::to_string(index));
    const Outputs other = rows_of(index);
    EXPECT_TRUE(other.out.same_bits(first.out));
    EXPECT_TRUE(same_bits(other.lse, first.lse, 0, kPeriod));
    EXPECT_TRUE(other.dk.same_bits(first.dk));
    EXPECT_TRUE(other.dv.same_bits(first.dv));
    for (std::int64_t t = 0; t < kPeriod; ++t)
      for (int h = 0; h < shape.heads_q; ++h)
        for (int d = 0; d < 128; ++d) {
          const double a = other.dq.at(t, h, d), b = first.dq.at(t, h, d);
          ASSERT_LE(std::abs(a - b), 1e-5 + std::abs(b) / 64) << "dq of row " << t;
        }
  }
}

// Few rows, but a token stride that takes them past 2^31 elements (and 2^32 bytes) from the first.
TEST_P(LargeGpu, StridesPastTwoToTheThirtyOneElements) {
  Case c;
  c.layout = from_lengths({150, 1, 20}, {150, 1, 20}, 3, 3, "far apart");
  c.shape = make_shape(4, 2, 64, DType::bf16);
  ASSERT_EQ(refuses(c.shape), "");
  constexpr std::int64_t kStride = std::int64_t{14} << 20;
  const std::int64_t rows = c.layout.rows();
  ASSERT_GT((rows - 1) * kStride, std::int64_t{1} << 31);
  const std::size_t bytes = static_cast<std::size_t>((rows - 1) * kStride + 4 * 64) * 2;
  if (device_->facts().total_memory < 8 * bytes + (std::size_t{2} << 30))
    GTEST_SKIP() << "needs " << (8 * bytes >> 30) << " GiB of device memory";
  const Data data = make_data(c);
  Outputs o = make_outputs(c);
  const auto prepared = prepare_on_device(c.shape, single_rank_plan(c.layout));
  std::vector<device::Buffer> buffers;
  const auto far = [&](HostTensor& x) {
    buffers.push_back(device_->allocate(bytes));
    const std::size_t width = static_cast<std::size_t>(x.heads() * x.dim()) * 2;
    device_->copy_2d_async(buffers.back().get(), kStride * 2, x.data(), width, width,
                           static_cast<std::size_t>(rows), nullptr);
    TensorView view = TensorView::packed(buffers.back().get(), x.dtype(), rows, x.heads(), x.dim());
    view.token_stride = kStride;
    return view;
  };
  attention::ForwardCall forward;
  attention::BackwardCall backward;
  try {
    Data from = data;
    forward.q = backward.q = far(from.q);
    forward.k = backward.k = far(from.k);
    forward.v = backward.v = far(from.v);
    backward.dout = far(from.dout);
    forward.out = far(o.out);
    backward.out = forward.out;
    backward.dq = far(o.dq);
    backward.dk = far(o.dk);
    backward.dv = far(o.dv);
    device_->synchronize(nullptr);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const device::Buffer lse = allocate(static_cast<std::size_t>(4 * rows) * sizeof(float));
  const device::Buffer workspace = allocate(prepared->backward_workspace() + 256);
  forward.lse = LseView::packed(static_cast<float*>(lse.get()), 4, rows);
  backward.lse = {forward.lse.data, 4, rows, rows};
  forward.workspace = backward.workspace = {workspace.get(), prepared->backward_workspace()};
  run_both(*prepared, forward, backward);
  const auto near = [&](HostTensor& x, const TensorView& view) {
    const std::size_t width = static_cast<std::size_t>(x.heads() * x.dim()) * 2;
    device_->copy_2d_async(x.data(), width, view.data, kStride * 2, width, static_cast<std::size_t>(rows),
                           nullptr);
  };
  near(o.out, forward.out);
  near(o.dq, backward.dq);
  near(o.dk, backward.dk);
  near(o.dv, backward.dv);
  device_->synchronize(nullptr);
  device_->download(o.lse.data.data(), lse.get(), o.lse.data.size() * sizeof(float));
  expect_oracle(c, data, o);
}

// All logits zero, all of V one: what results must be is known without an oracle.
TEST_P(LargeFastGpu, FourMillionKeys) {
  const CallShape shape = make_shape(1, 1, 128, DType::bf16);
  ASSERT_EQ(refuses(shape), "");
  constexpr std::int64_t kRows = 64, kKeys = std::int64_t{1} << 22;
  const auto prepared =
      prepare_on_device(shape, single_rank_plan(from_lengths({kRows}, {kKeys}, 0, 0, "2^22 keys")));
  HostTensor zeros(DType::bf16, 4096, 1, 128), ones(DType::bf16, 4096, 1, 128);
  zeros.fill(0);
  ones.fill(1);
  const std::size_t block = 4096 * 128 * 2;
  const auto filled = [&](HostTensor& with, std::int64_t rows) {
    device::Buffer buffer =
        device_->allocate(static_cast<std::size_t>(std::max<std::int64_t>(rows, 4096)) * 256);
    device_->upload(buffer.get(), with.data(), block);
    for (std::int64_t at = 4096; at < rows; at += 4096)
      device_->copy_async(static_cast<char*>(buffer.get()) + at * 256, buffer.get(), block, nullptr);
    return buffer;
  };
  const device::Buffer q = filled(zeros, kRows), k = filled(ones, kKeys), v = filled(ones, kKeys),
                       dout = filled(ones, kRows), out = allocate(kRows * 256), dq = allocate(kRows * 256),
                       dk = allocate(kKeys * 256), dv = allocate(kKeys * 256), lse = allocate(kRows * 4),
                       workspace = allocate(prepared->backward_workspace() + 256);
  const auto view = [&](const device::Buffer& buffer, std::int64_t rows) {
    return TensorView::packed(buffer.get(), DType::bf16, rows, 1, 128);
  };
  attention::ForwardCall forward;
  attention::BackwardCall backward;
  forward.q = backward.q = view(q, kRows);
  forward.k = backward.k = view(k, kKeys);
  forward.v = backward.v = view(v, kKeys);
  forward.out = view(out, kRows);
  backward.out = view(out, kRows);
  backward.dout = view(dout, kRows);
  backward.dq = view(dq, kRows);
  backward.dk = view(dk, kKeys);
  backward.dv = view(dv, kKeys);
  forward.lse = LseView::packed(static_cast<float*>(lse.get()), 1, kRows);
  backward.lse = {forward.lse.data, 1, kRows, kRows};
  forward.workspace = backward.workspace = {workspace.get(), prepared->backward_workspace()};
  run_both(*prepared, forward, backward);
  std::vector<float> lse_host(kRows);
  device_->download(lse_host.data(), lse.get(), kRows * 4);
  HostTensor rows(DType::bf16, kRows, 1, 128), gradients(DType::bf16, 4096, 1, 128);
  device_->download(rows.data(), out.get(), kRows * 256);
  for (std::int64_t t = 0; t < kRows; ++t) {
    EXPECT_NEAR(lse_host[static_cast<std::size_t>(t)], std::log(static_cast<double>(kKeys - kRows + t + 1)),
                1e-4);
    EXPECT_NEAR(rows.at(t, 0, 7), 1.0, 4e-3);
  }
  device_->download(rows.data(), dq.get(), kRows * 256);
  for (const double value : rows.values()) ASSERT_TRUE(std::isfinite(value));
  for (const std::int64_t from : {std::int64_t{0}, kKeys / 2, kKeys - 4096}) {
    device_->download(gradients.data(), static_cast<char*>(dv.get()) + from * 256, block);
    for (std::int64_t i = 0; i < 4096; ++i) {
      const double seen = static_cast<double>(std::min(kRows, kKeys - from - i));
      ASSERT_NEAR(gradients.at(i, 0, 3) * kKeys, seen, 0.02 * seen) << "dv of key " << from + i;
    }
    device_->download(gradients.data(), static_cast<char*>(dk.get()) + from * 256, block);
    for (const double value : gradients.values()) ASSERT_EQ(value, 0);  // Q is zero
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, LargeFastGpu, ::testing::ValuesIn(fast_backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Cuda, LargeGpu, ::testing::ValuesIn(cuda_backends()), backend_name);

}  // namespace
}  // namespace bdcp::test
