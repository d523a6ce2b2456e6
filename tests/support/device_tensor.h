// Host tensors in device memory.
#pragma once

#include <utility>

#include "device/device.h"
#include "support/tensors.h"

namespace bdcp::test {

/// A HostTensor's copy in device memory, gaps included.
class DeviceTensor {
 public:
  DeviceTensor(device::Device& device, HostTensor tensor) : device_(device), tensor_(std::move(tensor)) {
    memory_ = device.allocate(tensor_.bytes().size());
    device.upload(memory_.get(), tensor_.bytes().data(), tensor_.bytes().size());
  }
  TensorView view() {
    TensorView result = tensor_.view();
    const auto* begin = reinterpret_cast<const std::byte*>(tensor_.bytes().data());
    result.data = static_cast<std::byte*>(memory_.get()) + (static_cast<const std::byte*>(result.data) - begin);
    return result;
  }
  void* memory() { return memory_.get(); }
  std::size_t bytes() const { return tensor_.bytes().size(); }
  const HostTensor& download() {
    device_.download(tensor_.bytes().data(), memory_.get(), tensor_.bytes().size());
    return tensor_;
  }

 private:
  device::Device& device_;
  HostTensor tensor_;
  device::Buffer memory_;
};

}  // namespace bdcp::test
