// One rank's shard of a forward and a backward on a device.
#pragma once

#include <cmath>
#include <memory>

#include "step/world.h"
#include "support/device_tensor.h"

namespace bdcp::test {

class DeviceRank {
 public:
  /// K, V and the other inputs in any memory order; outputs are packed and poisoned.
  DeviceRank(const Step& step, const CallShape& shape, const GlobalInputs& inputs, int rank,
             const std::shared_ptr<device::Device>& device,
             HostTensor::Order order = HostTensor::Order::packed);
  void forward(const Step& step);
  void backward(const Step& step);
  /// Waits for the stream.
  void finish();
  /// Keeps the stream busy for about this long.
  void delay(double seconds);
  /// Results on the host, after finish(): out, dq, dk, dv, lse.
  struct Results {
    HostTensor out, dq, dk, dv;
    HostLse lse;
  };
  Results download();
  const Stream& stream() const { return stream_; }

 private:
  DeviceTensor input(const HostTensor& whole, std::int64_t begin, HostTensor::Order order);
  DeviceTensor output(int heads, int dim);
  BufferView workspace(std::size_t bytes);

  std::shared_ptr<device::Device> device_;
  CallShape shape_;
  std::int64_t rows_;
  device::OwnedStream owned_;
  Stream stream_;
  std::vector<device::Buffer> buffers_;
  DeviceTensor q_, k_, v_, dout_, out_, dq_, dk_, dv_;
  device::Buffer lse_;
  BufferView forward_, backward_, kept_;
};

}  // namespace bdcp::test
