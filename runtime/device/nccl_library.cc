#include "device/nccl_library.h"

#include <fmt/format.h>

namespace bdcp::device {
namespace {

std::string text_of(int version) {
  // Up to 2.8 the number was 2809 for 2.8.9.
  if (version < 10000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::shared_ptr<const NcclLibrary> NcclLibrary::open(const Env& env, std::string* why) {
  const auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return nullptr;
  };
  std::string reason;
  auto library = DynamicLibrary::open({"libnccl.so.2", "libnccl.so"}, env.libnccl.value_or(""),
                                      cuda_library_folders(env), &reason);
  if (!library) return refuse("no NCCL: " + reason);
  auto nccl = std::make_shared<NcclLibrary>();
  std::string missing;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library->symbol(name));
    if (!function && missing.empty()) missing = name;
  };
#define BDCP_RESOLVE(name, ...) resolve(nccl->name, #name);
  BDCP_NCCL_FUNCTIONS(BDCP_RESOLVE)
#undef BDCP_RESOLVE
  // The version first: an old library lacks functions too.
  if (nccl->ncclGetVersion && nccl->ncclGetVersion(&nccl->version_) == nccl::success &&
      nccl->version_ < kOldest)
    return refuse(fmt::format("NCCL {} at {} is too old; {} or newer is needed", text_of(nccl->version_),
                              library->path(), text_of(kOldest)));
  if (!missing.empty())
    return refuse(fmt::format("{} is no NCCL of use: it has no {}", library->path(), missing));
  if (nccl->version_ == 0) return refuse(fmt::format("ncclGetVersion of {} fails", library->path()));
  nccl->library_ = std::move(library);
  return nccl;
}

std::string NcclLibrary::version_text() const { return text_of(version_); }

Error NcclLibrary::error(nccl::Result result, const char* call, nccl::Comm comm) const {
  const char* const name = ncclGetErrorString(result);
  const char* const last = comm ? ncclGetLastError(comm) : nullptr;
  Error error(ErrorCode::nccl_error,
              fmt::format("{} failed: {} ({}){}{}", call, name ? name : "unknown NCCL error",
                          static_cast<int>(result), last && *last ? "; " : "", last ? last : ""),
              ErrorScope::communicator);
  return error.with_call(call);
}

void NcclLibrary::fail(nccl::Result result, const char* call, nccl::Comm comm) const {
  throw error(result, call, comm);
}

}  // namespace bdcp::device
