#include "jit/cubin_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/handle.h"
#include "bdcp/error.h"

namespace bdcp::jit {
namespace {

struct FileTraits {
  using type = int;
  static constexpr type null = -1;
  void destroy(type value) noexcept { close(value); }
};
using File = Handle<FileTraits>;

// Names in a folder that start and end so, sorted; empty when it cannot be listed.
std::vector<std::string> list(const std::string& folder, const std::string& prefix, const std::string& suffix) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (!dir) return names;
  while (const dirent* entry = readdir(dir)) {
    std::string name = entry->d_name;
    if (name.starts_with(prefix) && name.ends_with(suffix)) names.push_back(std::move(name));
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool read_all(int file, char* into, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::read(file, into, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int file, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t put = ::write(file, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

// mkdir -p, never writable for others whatever the umask. 0, or errno.
int make_folders(const std::string& path) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    if (mkdir(path.substr(0, at).c_str(), 0755) != 0 && errno != EEXIST) return errno;
    if (at == std::string::npos) break;
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

std::string folder_of(const std::string& root, const SpecKey& key) {
  return fmt::format("{}/v{}/{}", root, kCubinSchema, key.base.substr(0, 2));
}
std::string prefix_of(const SpecKey& key) { return key.base.substr(0, 16) + "-"; }

}  // namespace

std::string entry_path(const std::string& root, const SpecKey& key, const std::string& nvrtc_build) {
  return fmt::format("{}/{}{}{}", folder_of(root, key), prefix_of(key), key.key(nvrtc_build), kCubinSuffix);
}

CubinStore::CubinStore(StoreRoot root, std::vector<std::string> seeds, Warn warn)
    : root_(std::move(root)), seeds_(std::move(seeds)), warn_(std::move(warn)) {}

void CubinStore::warn_once(std::atomic<bool>& flag, const std::string& text) {
  if (!flag.exchange(true) && warn_) warn_(text);
}

std::optional<CubinStore::Hit> CubinStore::find(const SpecKey& key, const std::string& nvrtc_build) {
  std::call_once(checked_, [&] {
    if (!root_.warning.empty() && warn_) warn_(root_.warning);
    std::erase_if(seeds_, [&](const std::string& seed) {
      const std::string why = why_not_seed(seed);
      if (!why.empty() && warn_) warn_(why);
      return !why.empty();
    });
  });
  if (!root_.path.empty())
    if (auto hit = find_in(root_.path, false, key, nvrtc_build)) return hit;
  for (const std::string& seed : seeds_)
    if (auto hit = find_in(seed, true, key, nvrtc_build)) return hit;
  return std::nullopt;
}

std::optional<CubinStore::Hit> CubinStore::find_in(const std::string& root, bool seed, const SpecKey& key,
                                                   const std::string& build) {
  if (!build.empty()) return read(entry_path(root, key, build), seed, key, build);
  const std::string folder = folder_of(root, key);
  for (const std::string& name : list(folder, prefix_of(key), kCubinSuffix))
    if (auto hit = read(fmt::format("{}/{}", folder, name), seed, key, build)) return hit;
  return std::nullopt;
}

std::optional<CubinStore::Hit> CubinStore::read(const std::string& path, bool seed, const SpecKey& key,
                                                const std::string& build) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::nullopt;  // absent, or unreadable: a miss either way
  Hit hit{{}, path, seed};
  struct stat info;
  std::string why;
  bool ok = fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
  if (!ok) why = "not a regular file";
  if (ok && (info.st_mode & S_IWOTH || (!seed && info.st_uid != geteuid() && info.st_uid != 0))) {
    ok = false;
    why = "another user could have written it";
  }
  if (ok) {
    CubinHeader header;
    const auto size = static_cast<std::uint64_t>(info.st_size);
    ok = size >= sizeof(header) && read_all(file.get(), reinterpret_cast<char*>(&header), sizeof(header));
    if (!ok) {
      why = fmt::format("{} bytes, shorter than a header", size);
    } else if ((ok = check_header(header, size, &why))) {
      std::vector<char> bytes(size);
      std::memcpy(bytes.data(), &header, sizeof(header));
      ok = read_all(file.get(), bytes.data() + sizeof(header), size - sizeof(header));
      if (!ok)
        why = "it became shorter while it was read";
      else
        ok = decode(bytes, &hit.record, &why);
    }
  }
  // The name is only a hash; the text decides. (Without NVRTC the entry tells which build made it.)
  if (ok && hit.record.key_text != key.text(build.empty() ? hit.record.nvrtc_build : build)) {
    ok = false;
    why = "its key text is another kernel's";
  }
  if (ok) return hit;
  reject(hit, why);
  return std::nullopt;
}

void CubinStore::reject(const Hit& hit, const std::string& why) {
  ++corrupt_;
  warn_once(warned_corrupt_, fmt::format("kernel cache: entry '{}' is not used: {}; it is compiled again "
                                         "(further damaged entries are only counted)",
                                         hit.path, why));
  if (!hit.seed) quarantine(hit.path);
}

void CubinStore::quarantine(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/'));
  const bool full = list(folder, "", kQuarantineSuffix).size() >= static_cast<std::size_t>(kMaxQuarantined);
  // On a read-only file system both fail, and the entry stays a counted miss.
  if (full || rename(path.c_str(), (path + kQuarantineSuffix).c_str()) != 0) unlink(path.c_str());
}

bool CubinStore::publish_failed(const std::string& path, const char* what, int error) {
  ++publish_failures_;
  warn_once(
      warned_publish_,
      fmt::format("kernel cache: {} '{}': {} (errno {}); kernels are kept in memory; set kernels.cache_dir or "
                  "BDCP_CACHE_DIR to a folder with space that this user can write to",
                  what, path, std::strerror(error), error));
  return false;
}

bool CubinStore::publish(const SpecKey& key, const CubinRecord& record) {
  if (root_.path.empty()) return false;
  const std::string folder = folder_of(root_.path, key);
  if (const int error = make_folders(folder); error != 0) return publish_failed(folder, "cannot make", error);
  std::string bytes;
  try {
    bytes = encode(record);
  } catch (const Error&) {
    return publish_failed(folder, "cannot encode an entry in", EFBIG);
  }
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);  // process ids alone collide on shared file systems
  const std::string temporary = fmt::format("{}/{}{}.{}.{}.{}", folder, kTemporaryPrefix, host, getpid(),
                                            static_cast<const void*>(this), temporaries_.fetch_add(1));
  File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return publish_failed(temporary, "cannot create", errno);
  auto abandon = [&](const char* what) {
    const int error = errno;
    unlink(temporary.c_str());
    return publish_failed(temporary, what, error);
  };
  if (!write_all(file.get(), bytes.data(), bytes.size()) || fsync(file.get()) != 0)
    return abandon("cannot write");
  if (close(file.release()) != 0) return abandon("cannot write");  // NFS reports a full disk here
  const std::string path = entry_path(root_.path, key, record.nvrtc_build);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    if (errno == EEXIST) {  // another process was first: the same bytes
      unlink(temporary.c_str());
      return true;
    }
    return abandon("cannot publish");
  }
  return true;
}

}  // namespace bdcp::jit
