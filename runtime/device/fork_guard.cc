#include "device/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace bdcp::device {
namespace {
constexpr std::size_t kPageBytes = 4096;
}

ForkGuard::ForkGuard() : pid_(static_cast<int>(getpid())) {
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, kPageBytes, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
    munmap(page, kPageBytes);
    return;
  }
  page_ = static_cast<int*>(page);
  *page_ = 1;
}

ForkGuard::~ForkGuard() {
  if (page_) munmap(const_cast<int*>(page_), kPageBytes);
}

bool ForkGuard::forked() const { return page_ ? *page_ == 0 : static_cast<int>(getpid()) != pid_; }

}  // namespace bdcp::device
