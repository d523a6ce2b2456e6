// What bdcp uses of libnccl, declared here as its ABI has it since 2.18: no NCCL header is needed to build, and
// one binary serves every version. Private to device/ and to comm's nccl_*.cc.
#pragma once

#include <cstddef>
#include <limits>

namespace bdcp::device::nccl {

using Comm = struct ncclComm*;
using CudaStream = void*;  // cudaStream_t is CUstream

struct UniqueId {
  char internal[128];
};

enum Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7
};

inline constexpr int kUint8 = 1;  // ncclDataType_t
inline constexpr int kUndefined = std::numeric_limits<int>::min();

/// ncclConfig_t of 2.18. The library reads `size` bytes, takes `version` for that of the caller's header, and
/// gives later fields their defaults.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int padding = kUndefined;
};
static_assert(sizeof(Config) == 48 && offsetof(Config, blocking) == 16 && offsetof(Config, net_name) == 32);

// Name, result, parameters.
// clang-format off
#define BDCP_NCCL_FUNCTIONS(X)                                                                                  \
  X(ncclGetVersion, Result, int*)                                                                               \
  X(ncclGetErrorString, const char*, Result)                                                                    \
  X(ncclGetLastError, const char*, Comm)                                                                        \
  X(ncclGetUniqueId, Result, UniqueId*)                                                                         \
  X(ncclCommInitRankConfig, Result, Comm*, int, UniqueId, int, Config*)                                         \
  X(ncclCommFinalize, Result, Comm)                                                                             \
  X(ncclCommDestroy, Result, Comm)                                                                              \
  X(ncclCommAbort, Result, Comm)                                                                                \
  X(ncclCommGetAsyncError, Result, Comm, Result*)                                                               \
  X(ncclCommCount, Result, Comm, int*)                                                                          \
  X(ncclCommUserRank, Result, Comm, int*)                                                                       \
  X(ncclCommCuDevice, Result, Comm, int*)                                                                       \
  X(ncclGroupStart, Result)                                                                                     \
  X(ncclGroupEnd, Result)                                                                                       \
  X(ncclSend, Result, const void*, std::size_t, int, int, Comm, CudaStream)                                     \
  X(ncclRecv, Result, void*, std::size_t, int, int, Comm, CudaStream)                                           \
  X(ncclAllGather, Result, const void*, void*, std::size_t, int, Comm, CudaStream)                              \
  X(ncclBroadcast, Result, const void*, void*, std::size_t, int, int, Comm, CudaStream)
// clang-format on

struct Table {
#define BDCP_DECLARE(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
  BDCP_NCCL_FUNCTIONS(BDCP_DECLARE)
#undef BDCP_DECLARE
};

}  // namespace bdcp::device::nccl
