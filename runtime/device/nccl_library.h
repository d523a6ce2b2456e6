// libnccl, opened at run time: the one the process has loaded already, or one that is found.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/env.h"
#include "bdcp/error.h"
#include "device/dynamic_library.h"
#include "device/nccl_abi.h"

namespace bdcp::device {

/// Immutable once opened; thread safe.
class NcclLibrary : public nccl::Table {
 public:
  /// Before 2.26 several communicators of a process needed one total order of all calls.
  static constexpr int kOldest = 22600;

  /// Null with `why` filled where there is none, a function is missing, or it is older than kOldest.
  static std::shared_ptr<const NcclLibrary> open(const Env& env, std::string* why);

  int version() const { return version_; }
  std::string version_text() const;  ///< "2.28.9"
  const std::string& path() const { return library_->path(); }

  /// Throws Error(nccl_error) for anything but success and in_progress.
  void check(nccl::Result result, const char* call, nccl::Comm comm = nullptr) const {
    if (result != nccl::success && result != nccl::in_progress) fail(result, call, comm);
  }
  Error error(nccl::Result result, const char* call, nccl::Comm comm) const;

 private:
  [[noreturn]] void fail(nccl::Result result, const char* call, nccl::Comm comm) const;
  std::shared_ptr<const DynamicLibrary> library_;
  int version_ = 0;
};

}  // namespace bdcp::device
