// ForkGuard: knows, without a system call, that the process is a forked child of the one that made it.
#pragma once

namespace bdcp::device {

class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  bool forked() const;
  int owner() const { return pid_; }

 private:
  int pid_;
  volatile int* page_ = nullptr;  ///< holds 1; the kernel clears it in a child; null: compare process ids
};

}  // namespace bdcp::device
