// parallel_for: plain fork-join over threads, for host kernels and compilation.
#pragma once
#include <cstdint>
#include <functional>

namespace bdcp {

/// Runs body(i) for i in [0, count) on up to `threads` threads (0: number of cores), handing out indices one by
/// one. The first exception is rethrown after all threads have ended.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body, int threads = 0);

}  // namespace bdcp
