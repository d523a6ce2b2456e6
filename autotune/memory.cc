#include "autotune/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace bdcp::autotune {

void Block::Free::operator()(void* pointer) const noexcept { std::free(pointer); }

Block Memory::allocate(std::size_t bytes) const {
  Block block;
  block.bytes_ = bytes;
  if (bytes == 0) return block;
  if (!host()) {
    block.device_ = device_->allocate(bytes);
    return block;
  }
  constexpr std::size_t kAlignment = 256;
  block.host_.reset(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
  if (!block.host_) throw std::bad_alloc();
  return block;
}

void Memory::upload(void* dst, const void* src, std::size_t bytes) const {
  if (bytes == 0) return;
  if (host()) {
    std::memcpy(dst, src, bytes);
  } else {
    device_->upload(dst, src, bytes);
  }
}

void Memory::download(void* dst, const void* src, std::size_t bytes) const {
  if (bytes == 0) return;
  if (host()) {
    std::memcpy(dst, src, bytes);
  } else {
    device_->download(dst, src, bytes);
  }
}

void Memory::fill(const Block& block, unsigned char value) const {
  if (block.bytes() == 0) return;
  if (host()) {
    std::memset(block.data(), value, block.bytes());
  } else {
    device_->fill_async(block.data(), value, block.bytes(), nullptr);
    device_->synchronize(nullptr);
  }
}

}  // namespace bdcp::autotune
