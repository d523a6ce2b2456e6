// Memory of the place a measurement runs in: the host, or one GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace bdcp::autotune {

/// One allocation, aligned to 256 bytes; move-only. A device block keeps its device alive.
class Block {
 public:
  Block() = default;
  void* data() const { return device_ ? device_.get() : host_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  friend class Memory;
  struct Free {
    void operator()(void* pointer) const noexcept;
  };
  std::unique_ptr<void, Free> host_;
  device::Buffer device_;
  std::size_t bytes_ = 0;
};

/// Allocates and moves bytes; every call is complete on return. Thread safe.
class Memory {
 public:
  Memory() = default;  ///< host
  explicit Memory(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}
  bool host() const { return device_ == nullptr; }
  device::Device& device() const { return *device_; }

  /// Contents are undefined; 0 bytes give a block without data.
  Block allocate(std::size_t bytes) const;
  void upload(void* dst, const void* src, std::size_t bytes) const;
  void download(void* dst, const void* src, std::size_t bytes) const;
  void fill(const Block& block, unsigned char value) const;

 private:
  std::shared_ptr<device::Device> device_;
};

}  // namespace bdcp::autotune
