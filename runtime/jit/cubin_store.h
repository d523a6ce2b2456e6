// CubinStore: the disk tiers of the kernel cache: one folder of this user's, and read-only seed folders.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "jit/cubin_format.h"
#include "jit/spec_key.h"
#include "jit/store_root.h"

namespace bdcp::jit {

/// Thread safe, and safe beside other processes. No method throws for what it finds on disk: damage is a
/// counted miss, a failed write costs nothing but the entry. Warnings come once for each kind.
class CubinStore {
 public:
  using Warn = std::function<void(const std::string&)>;
  /// Creates nothing on disk; the folder is made by the first publish.
  CubinStore(StoreRoot root, std::vector<std::string> seeds, Warn warn);

  const std::string& directory() const { return root_.path; }

  struct Hit {
    CubinRecord record;
    std::string path;
    bool seed = false;
  };
  /// `nvrtc_build` empty (no NVRTC here): an entry of any build is taken.
  std::optional<Hit> find(const SpecKey& key, const std::string& nvrtc_build);
  /// Atomic: readers see the whole entry or none. True when an entry of this key is there afterwards.
  bool publish(const SpecKey& key, const CubinRecord& record);
  /// Takes an entry out that turned out to be unusable; counted as corrupt. Seed folders are left alone.
  void reject(const Hit& hit, const std::string& why);

  std::uint64_t corrupt() const { return corrupt_; }
  std::uint64_t publish_failures() const { return publish_failures_; }

 private:
  std::optional<Hit> find_in(const std::string& root, bool seed, const SpecKey& key, const std::string& build);
  std::optional<Hit> read(const std::string& path, bool seed, const SpecKey& key, const std::string& build);
  void quarantine(const std::string& path);
  void warn_once(std::atomic<bool>& flag, const std::string& text);
  bool publish_failed(const std::string& path, const char* what, int error);

  const StoreRoot root_;
  std::vector<std::string> seeds_;
  const Warn warn_;
  std::once_flag checked_;
  std::atomic<bool> warned_publish_{false}, warned_corrupt_{false};
  std::atomic<std::uint64_t> corrupt_{0}, publish_failures_{0}, temporaries_{0};
};

/// Path of an entry below a root.
std::string entry_path(const std::string& root, const SpecKey& key, const std::string& nvrtc_build);

}  // namespace bdcp::jit
