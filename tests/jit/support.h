// Shared by the jit tests: a small kernel of their own, temporary folders, and an environment of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "jit/kernel_cache.h"

namespace bdcp::jit::testing {

namespace fs = std::filesystem;

inline constexpr const char* kScaleText = R"(#pragma once
#include "scale_args.h"
extern "C" __global__ void scale(bdcp::kernel::ScaleArgs args) {
  __shared__ float tile[bdcp::kernel::Config::kThreads];
  int i = blockIdx.x * bdcp::kernel::Config::kThreads + threadIdx.x;
  tile[threadIdx.x] = i < args.count ? args.data[i] : 0.0f;
  __syncthreads();
  if (i < args.count) args.data[i] = tile[threadIdx.x] * bdcp::kernel::Config::kFactor;
}
extern "C" __global__ void negate(bdcp::kernel::ScaleArgs args) {
  int i = blockIdx.x * bdcp::kernel::Config::kThreads + threadIdx.x;
  if (i < args.count) args.data[i] = -args.data[i];
}
)";
inline constexpr const char* kArgsText = R"(#pragma once
namespace bdcp::kernel {
struct ScaleArgs {
  float* data;
  int count;
};
}
)";

inline std::vector<EmbeddedFile> scale_sources() {
  return {{"scale.cuh", kScaleText}, {"scale_args.h", kArgsText}, {"unrelated.cuh", "int unrelated;\n"}};
}

inline KernelSpec scale_spec(int factor = 3, const std::string& arch = "sm_80") {
  KernelSpec spec{"scale", arch, {}, 0, ""};
  return std::move(spec.add("kThreads", 128).add("kFactor", factor));
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "bdcp_jit_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  fs::path path() const { return path_; }
  std::string str() const { return path_.string(); }

 private:
  fs::path path_;
};

/// All regular files below a folder.
inline std::vector<fs::path> files_below(const fs::path& root, const std::string& suffix = "") {
  std::vector<fs::path> files;
  if (!fs::exists(root)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file() && entry.path().string().ends_with(suffix)) files.push_back(entry.path());
  return files;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
inline void write_file(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Collects warnings and lines.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> warnings, all;
  std::shared_ptr<const Log> log() {
    return std::make_shared<const Log>(Log::Level::trace, [this](Log::Level level, std::string_view line) {
      std::lock_guard lock(mutex);
      all.emplace_back(line);
      if (level == Log::Level::warn) warnings.emplace_back(line);
    });
  }
};

/// The process's environment as far as it tells where libraries are; no cache folders.
inline Env library_env() {
  Env env = Env::from_process();
  env.cache_dir.reset();
  env.xdg_cache_home.reset();
  env.home.reset();
  return env;
}
/// No NVRTC, wherever it may be installed.
inline Env env_without_nvrtc() { return Env::from_pairs({{"BDCP_LIBNVRTC", "/nonexistent/libnvrtc.so.13"}}); }

}  // namespace bdcp::jit::testing
