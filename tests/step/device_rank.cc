#include "step/device_rank.h"

#include <algorithm>

namespace bdcp::test {

DeviceRank::DeviceRank(const Step& step, const CallShape& s, const GlobalInputs& in, int rank,
                       const std::shared_ptr<device::Device>& device, HostTensor::Order order)
    : device_(device),
      shape_(s),
      rows_(step.layout().local_tokens()),
      owned_(device->create_stream()),
      stream_(Stream::cuda(owned_.get(), device->facts().ordinal)),
      q_(input(in.q, rank * rows_, order)),
      k_(input(in.k, rank * rows_, order)),
      v_(input(in.v, rank * rows_, order)),
      dout_(input(in.dout, rank * rows_, order)),
      out_(output(s.heads_q, s.dim_v())),
      dq_(output(s.heads_q, s.head_dim)),
      dk_(output(s.heads_kv, s.head_dim)),
      dv_(output(s.heads_kv, s.dim_v())),
      lse_(device->allocate(static_cast<std::size_t>(rows_ * s.heads_q) * sizeof(float))) {
  const WorkspaceSizes sizes = step.workspace(s);
  forward_ = workspace(sizes.forward);
  backward_ = workspace(sizes.backward);
  kept_ = workspace(sizes.kept_kv);
  device_->synchronize(nullptr);
}

DeviceTensor DeviceRank::input(const HostTensor& whole, std::int64_t begin, HostTensor::Order order) {
  HostTensor part(whole.dtype(), rows_, whole.heads(), whole.dim(), order);
  for (std::int64_t t = 0; t < rows_; ++t)
    for (std::int64_t h = 0; h < whole.heads(); ++h)
      for (std::int64_t d = 0; d < whole.dim(); ++d) part.set(t, h, d, whole.at(begin + t, h, d));
  return {*device_, std::move(part)};
}

DeviceTensor DeviceRank::output(int heads, int dim) {
  return {*device_, HostTensor(shape_.dtype, rows_, heads, dim).poison(0, rows_)};
}

BufferView DeviceRank::workspace(std::size_t bytes) {
  buffers_.push_back(device_->allocate(std::max<std::size_t>(bytes, 1)));
  device_->fill_async(buffers_.back().get(), 0xFF, std::max<std::size_t>(bytes, 1), nullptr);
  return {buffers_.back().get(), bytes};
}

void DeviceRank::forward(const Step& step) {
  ForwardArgs args;
  args.q = q_.view();
  args.k = k_.view();
  args.v = v_.view();
  args.out = out_.view();
  args.lse = LseView::packed(static_cast<float*>(lse_.get()), shape_.heads_q, rows_);
  args.workspace = forward_;
  args.kept_kv = kept_;
  step.forward(args, stream_);
}

void DeviceRank::backward(const Step& step) {
  BackwardArgs args;
  args.q = q_.view();
  args.k = k_.view();
  args.v = v_.view();
  args.out = out_.view();
  args.dout = dout_.view();
  args.lse = LseView::packed(static_cast<float*>(lse_.get()), shape_.heads_q, rows_);
  args.dq = dq_.view();
  args.dk = dk_.view();
  args.dv = dv_.view();
  args.workspace = backward_;
  args.kept_kv = kept_;
  step.backward(args, stream_);
}

void DeviceRank::finish() { device_->synchronize(stream_.handle); }

void DeviceRank::delay(double seconds) {
  // Scattered 8-byte pieces: slow for its size.
  constexpr std::size_t kPitch = 32, kRows = std::size_t{1} << 22;
  buffers_.push_back(device_->allocate(2 * kPitch * kRows));
  auto* data = static_cast<char*>(buffers_.back().get());
  const auto one = [&] {
    device_->copy_2d_async(data + kPitch * kRows, kPitch, data, kPitch, 8, kRows, stream_.handle);
  };
  const device::OwnedEvent start = device_->create_event(true), end = device_->create_event(true);
  one();
  device_->record(start.get(), stream_.handle);
  one();
  device_->record(end.get(), stream_.handle);
  finish();
  const double each = std::max(device_->elapsed_ms(start.get(), end.get()), 0.01) / 1e3;
  for (int i = 0; i < std::min(20000, static_cast<int>(seconds / each) + 1); ++i) one();
}

DeviceRank::Results DeviceRank::download() {
  Results results{out_.download(), dq_.download(), dk_.download(), dv_.download(),
                  HostLse(shape_.heads_q, rows_)};
  if (rows_ > 0)
    device_->download(results.lse.data.data(), lse_.get(), results.lse.data.size() * sizeof(float));
  return results;
}

}  // namespace bdcp::test
