#include "jit/kernel_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <mutex>
#include <semaphore>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/parallel.h"
#include "bdcp/error.h"
#include "jit/compiler.h"
#include "jit/cubin_store.h"
#include "jit/heartbeat.h"
#include "jit/spec_map.h"

namespace bdcp::jit {
namespace {

using Compiled = std::shared_ptr<const CompiledKernel>;
using Loaded = std::shared_ptr<const device::LoadedKernel>;
using Origin = CompiledKernel::Origin;

std::string label(const KernelSpec& spec) {
  std::string text = fmt::format("{} for {}", spec.kernel, spec.arch);
  for (const KernelSpec::Constant& constant : spec.constants)
    text += fmt::format("{}{}={}", &constant == &spec.constants.front() ? " [" : " ", constant.name,
                        constant.value);
  return spec.constants.empty() ? text : text + "]";
}

std::string creator() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return fmt::format("{}@{}", getpid(), host);
}

Compiled to_compiled(const KernelSpec& spec, CubinRecord record, std::string key, Origin origin) {
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->spec = spec;
  kernel->key = std::move(key);
  kernel->key_text = std::move(record.key_text);
  kernel->cubin = std::make_shared<const std::vector<char>>(std::move(record.cubin));
  kernel->registers = record.registers;
  kernel->spill_bytes = record.spill_bytes;
  kernel->smem_bytes = record.static_smem + spec.dynamic_smem;
  kernel->compile_ms = record.compile_ms;
  kernel->log = std::move(record.log);
  kernel->nvrtc_build = std::move(record.nvrtc_build);
  kernel->origin = origin;
  return kernel;
}

// What later callers get. Specs that differ in dynamic shared memory alone share one cubin.
Compiled as_memory_hit(const Compiled& kernel, const KernelSpec& spec) {
  auto copy = std::make_shared<CompiledKernel>(*kernel);
  copy->smem_bytes += spec.dynamic_smem - kernel->spec.dynamic_smem;
  copy->spec = spec;
  copy->origin = Origin::memory;
  return copy;
}

const char* to_text(PolicyValues::OnMiss on_miss) {
  return on_miss == PolicyValues::OnMiss::fallback ? "fallback" : "error";
}

int job_count(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace

struct KernelCache::Impl {
  // One per key; its mutex is the single flight.
  struct Entry {
    std::mutex mutex;
    Compiled kernel;
    std::optional<CubinStore::Hit> hit;  // where a kernel from disk came from, without its record
    bool distrust_disk = false;          // the driver refused what disk had
    std::optional<Error> failure;        // of the last attempt
    std::atomic<std::uint64_t> attempts{0};
  };

  Impl(CacheOptions o, const Env& env, std::shared_ptr<const Log> l, SourceSet s)
      : options(std::move(o)),
        log(std::move(l)),
        sources(s),
        compiler(env),
        store(choose_store_root(options.cache_dir, env), options.seed_dirs,
              [this](const std::string& text) {
                if (log) log->warn(text);
              }),
        slots(job_count(options.jobs)) {}

  void say(const std::string& text) const {
    if (log) log->info(text);
    if (options.on_compile) options.on_compile(text);
  }

  std::shared_ptr<Entry> entry_of(const std::string& base) {
    std::lock_guard lock(entries_mutex);
    auto& entry = entries[base];
    if (!entry) entry = std::make_shared<Entry>();
    return entry;
  }

  Compiled get(const KernelSpec& spec);
  Compiled fill(const KernelSpec& spec, const SpecKey& key, Entry& entry);
  CubinRecord compile(const KernelSpec& spec, const SpecKey& key);
  Loaded load(const KernelSpec& spec, const std::shared_ptr<device::Device>& device);
  bool reject(const KernelSpec& spec, const Compiled& refused, const Error& error);

  const CacheOptions options;
  const std::shared_ptr<const Log> log;
  const SourceSet sources;
  Compiler compiler;
  CubinStore store;
  std::counting_semaphore<> slots;

  SpecMap<Compiled> hot;
  SpecMap<Loaded> loaded;
  std::mutex entries_mutex;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries;
  std::mutex loading_mutex;
  std::map<std::pair<std::uint64_t, const void*>, std::shared_ptr<std::mutex>> loading;

  std::atomic<std::uint64_t> memory_hits{0}, disk_hits{0}, seed_hits{0}, misses{0}, compiled{0}, failed{0};
};

Compiled KernelCache::Impl::get(const KernelSpec& spec) {
  if (auto found = hot.find(spec)) {
    ++memory_hits;
    return *found;
  }
  const SpecKey key = make_spec_key(spec, sources);
  const std::shared_ptr<Entry> entry = entry_of(key.base);
  const std::uint64_t attempts_before = entry->attempts;
  std::lock_guard lock(entry->mutex);
  if (entry->kernel) {
    ++memory_hits;
    Compiled hit = as_memory_hit(entry->kernel, spec);
    hot.put(spec, nullptr, hit);
    return hit;
  }
  // Whoever waited for an attempt that failed shares its outcome; a later call starts a new one.
  if (entry->failure && entry->attempts != attempts_before) throw Error(*entry->failure);
  try {
    entry->kernel = fill(spec, key, *entry);
    entry->failure.reset();
    hot.put(spec, nullptr, as_memory_hit(entry->kernel, spec));
    return entry->kernel;
  } catch (const Error& error) {
    entry->failure = error;
    ++entry->attempts;
    throw;
  }
}

Compiled KernelCache::Impl::fill(const KernelSpec& spec, const SpecKey& key, Entry& entry) {
  const std::string& build = compiler.nvrtc_build();
  if (!entry.distrust_disk) {
    if (auto hit = store.find(key, build)) {
      ++(hit->seed ? seed_hits : disk_hits);
      CubinRecord record = std::exchange(hit->record, {});
      std::string hex = key.key(record.nvrtc_build);
      const Origin origin = hit->seed ? Origin::seed : Origin::disk;
      entry.hit = std::move(hit);
      return to_compiled(spec, std::move(record), std::move(hex), origin);
    }
  }
  ++misses;
  if (options.on_miss != PolicyValues::OnMiss::jit) {
    ++failed;
    Error error(ErrorCode::compile_failed,
                fmt::format("kernel {} is not in the cache ({}), and the policy kernels.on_miss = {} forbids "
                            "compiling it; warm the cache with bdcp-autotune warm",
                            label(spec), store.directory().empty() ? "memory only" : store.directory(),
                            to_text(options.on_miss)));
    throw error;
  }
  CubinRecord record = compile(spec, key);
  store.publish(key, record);
  return to_compiled(spec, std::move(record), key.key(build), Origin::compiled);
}

CubinRecord KernelCache::Impl::compile(const KernelSpec& spec, const SpecKey& key) {
  struct Slot {
    std::counting_semaphore<>& slots;
    explicit Slot(std::counting_semaphore<>& s) : slots(s) { slots.acquire(); }
    ~Slot() { slots.release(); }
  } slot(slots);
  say(fmt::format("compiling {}", label(spec)));
  Compiler::Result result;
  try {
    Heartbeat heartbeat(options.heartbeat_s, [&](double seconds) {
      say(fmt::format("still compiling {} ({:.0f} s)", label(spec), seconds));
    });
    result = compiler.compile(spec, key);
  } catch (const Error& error) {
    ++failed;
    say(fmt::format("failed to compile {}: {}", label(spec), error.message()));
    throw;
  }
  ++compiled;
  say(fmt::format("compiled {} in {:.2f} s ({} registers, {} bytes spilled)", label(spec), result.ms / 1000,
                  result.resources.registers, result.resources.spill_bytes));
  CubinRecord record;
  record.nvrtc_build = compiler.nvrtc_build();
  record.key_text = key.text(record.nvrtc_build);
  record.kernel = spec.kernel;
  record.arch = spec.arch;
  record.creator = creator();
  record.created = static_cast<std::int64_t>(std::time(nullptr));
  record.registers = result.resources.registers;
  record.spill_bytes = result.resources.spill_bytes;
  record.static_smem = result.resources.static_smem;
  record.compile_ms = result.ms;
  record.log = std::move(result.log);
  record.cubin = std::move(result.cubin);
  return record;
}

Loaded KernelCache::Impl::load(const KernelSpec& spec, const std::shared_ptr<device::Device>& device) {
  if (auto found = loaded.find(spec, device.get())) return *found;
  std::shared_ptr<std::mutex> flight;
  {
    std::lock_guard lock(loading_mutex);
    auto& slot = loading[{hash_of(spec), device.get()}];
    if (!slot) slot = std::make_shared<std::mutex>();
    flight = slot;
  }
  std::lock_guard lock(*flight);
  if (auto found = loaded.find(spec, device.get())) return *found;
  auto load_once = [&](const Compiled& kernel) {
    return device->load(kernel->cubin->data(), kernel->cubin->size(), spec.kernel, spec.dynamic_smem);
  };
  Compiled kernel = get(spec);
  Loaded result;
  try {
    result = load_once(kernel);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::cuda_error || !reject(spec, kernel, error)) throw;
    result = load_once(get(spec));
  }
  loaded.put(spec, device.get(), result);
  return result;
}

// Forgets a kernel from disk that does not load. False when it was compiled here: compiling again is no help.
bool KernelCache::Impl::reject(const KernelSpec& spec, const Compiled& refused, const Error& error) {
  const std::shared_ptr<Entry> entry = entry_of(make_spec_key(spec, sources).base);
  std::lock_guard lock(entry->mutex);
  if (entry->kernel && entry->kernel->cubin != refused->cubin) return true;  // another device was first
  if (!entry->hit) return false;
  store.reject(*entry->hit, error.message());
  entry->hit.reset();
  entry->distrust_disk = true;
  entry->kernel.reset();
  hot.erase_if([&](const Compiled& kernel) { return kernel->cubin == refused->cubin; });
  return true;
}

KernelCache::KernelCache(CacheOptions options, const Env& env, std::shared_ptr<const Log> log,
                         SourceSet sources)
    : impl_(std::make_unique<Impl>(std::move(options), env, std::move(log), sources)) {}
KernelCache::~KernelCache() = default;

Compiled KernelCache::get(const KernelSpec& spec) { return impl_->get(spec); }

Loaded KernelCache::load(const KernelSpec& spec, const std::shared_ptr<device::Device>& device) {
  return impl_->load(spec, device);
}

std::vector<Compiled> KernelCache::get_all(const std::vector<KernelSpec>& specs,
                                           std::vector<std::string>* errors,
                                           const std::function<void(std::size_t)>& progress) {
  std::vector<Compiled> kernels(specs.size());
  std::vector<std::string> texts(specs.size());
  std::mutex mutex;
  std::size_t done = 0;
  parallel_for(
      static_cast<std::int64_t>(specs.size()),
      [&](std::int64_t index) {
        const auto i = static_cast<std::size_t>(index);
        try {
          kernels[i] = impl_->get(specs[i]);
        } catch (const Error& error) {
          texts[i] = error.what();
        }
        std::lock_guard lock(mutex);
        ++done;
        if (progress) progress(done);
      },
      job_count(impl_->options.jobs));
  if (errors) *errors = std::move(texts);
  return kernels;
}

CacheStats KernelCache::stats() const {
  CacheStats stats;
  stats.memory_hits = impl_->memory_hits;
  stats.disk_hits = impl_->disk_hits;
  stats.seed_hits = impl_->seed_hits;
  stats.misses = impl_->misses;
  stats.compiled = impl_->compiled;
  stats.failed = impl_->failed;
  stats.corrupt = impl_->store.corrupt();
  stats.publish_failures = impl_->store.publish_failures();
  return stats;
}

const std::string& KernelCache::directory() const { return impl_->store.directory(); }
std::vector<std::string> KernelCache::supported_archs() const { return impl_->compiler.supported_archs(); }
std::string KernelCache::why_no_compiler() const { return impl_->compiler.why_unavailable(); }

}  // namespace bdcp::jit
