#include "jit/kernel_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <thread>

#include "bdcp/error.h"
#include "jit/cubin_format.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Origin = CompiledKernel::Origin;
using testing::files_below;
using testing::library_env;
using testing::Lines;
using testing::read_file;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;
using testing::write_file;

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = cache(memory_only())->why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  CacheOptions options() {
    CacheOptions options;
    options.cache_dir = dir_.str() + "/cache";
    return options;
  }
  CacheOptions memory_only() {
    CacheOptions options;
    options.cache_dir = "";
    return options;
  }
  std::unique_ptr<KernelCache> cache(CacheOptions options) {
    return std::make_unique<KernelCache>(std::move(options), library_env(), lines_.log(), sources_);
  }
  std::vector<EmbeddedFile> sources_ = scale_sources();
  TempDir dir_;
  Lines lines_;
};

TEST_F(KernelCacheTest, MissThenMemoryThenDisk) {
  auto first = cache(options());
  const auto compiled = first->get(scale_spec());
  EXPECT_EQ(compiled->origin, Origin::compiled);
  EXPECT_EQ(compiled->key.size(), 32u);
  EXPECT_GT(compiled->registers, 0);
  EXPECT_EQ(compiled->smem_bytes, 512);
  const auto memory = first->get(scale_spec());
  EXPECT_EQ(memory->origin, Origin::memory);
  EXPECT_EQ(memory->cubin, compiled->cubin);
  CacheStats stats = first->stats();
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.compiled, 1u);
  EXPECT_EQ(stats.memory_hits, 1u);
  EXPECT_EQ(stats.disk_hits, 0u);
  EXPECT_THAT(files_below(first->directory()), SizeIs(1));

  auto second = cache(options());
  const auto disk = second->get(scale_spec());
  EXPECT_EQ(disk->origin, Origin::disk);
  EXPECT_EQ(*disk->cubin, *compiled->cubin);
  EXPECT_EQ(disk->key, compiled->key);
  EXPECT_EQ(disk->key_text, compiled->key_text);
  EXPECT_EQ(disk->log, compiled->log);
  EXPECT_EQ(disk->registers, compiled->registers);
  EXPECT_EQ(disk->compile_ms, compiled->compile_ms);
  stats = second->stats();
  EXPECT_EQ(stats.disk_hits, 1u);
  EXPECT_EQ(stats.misses, 0u);
  EXPECT_EQ(stats.compiled, 0u);
}

TEST_F(KernelCacheTest, SuffixIsPartOfTheKey) {
  auto cache = this->cache(options());
  EXPECT_NE(cache->get(scale_spec(3, "sm_90"))->key, cache->get(scale_spec(3, "sm_90a"))->key);
  EXPECT_EQ(cache->stats().compiled, 2u);
}

TEST_F(KernelCacheTest, ThreadsWithOneKeyCompileOnce) {
  auto cache = this->cache(options());
  std::atomic<int> compiled{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      if (cache->get(scale_spec())->origin == Origin::compiled) ++compiled;
    });
  threads.clear();
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(cache->stats().compiled, 1u);
  EXPECT_EQ(cache->stats().memory_hits, 7u);
  EXPECT_EQ(cache->stats().misses, 1u);
}

// Each compile reports before it starts; with both inside, neither waited for the other.
TEST_F(KernelCacheTest, DifferentKeysCompileAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable both;
  int inside = 0;
  bool together = true;
  CacheOptions options = this->options();
  options.jobs = 2;
  options.on_compile = [&](const std::string& text) {
    if (!text.starts_with("compiling")) return;
    std::unique_lock lock(mutex);
    ++inside;
    both.notify_all();
    if (!both.wait_for(lock, std::chrono::seconds(20), [&] { return inside == 2; })) together = false;
  };
  auto cache = this->cache(options);
  std::jthread other([&] { cache->get(scale_spec(5)); });
  cache->get(scale_spec(6));
  other.join();
  EXPECT_TRUE(together);
}

TEST_F(KernelCacheTest, JobsBoundCompilesAndHitsNeverWait) {
  std::atomic<int> running{0}, most{0};
  KernelCache* self = nullptr;
  std::atomic<int> hits_inside{0};
  CacheOptions options = this->options();
  options.jobs = 1;
  options.on_compile = [&](const std::string& text) {
    if (text.starts_with("compiling")) {
      most = std::max(most.load(), ++running);
      // The one slot is taken, and yet what is there can be had.
      if (self && self->get(scale_spec(0))->origin == Origin::memory) ++hits_inside;
    } else {
      --running;
    }
  };
  auto cache = this->cache(options);
  cache->get(scale_spec(0));
  self = cache.get();
  std::vector<std::jthread> threads;
  for (int t = 1; t <= 4; ++t) threads.emplace_back([&, t] { cache->get(scale_spec(t)); });
  threads.clear();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(hits_inside, 4);
  EXPECT_EQ(cache->stats().compiled, 5u);
}

TEST_F(KernelCacheTest, FailFixRetry) {
  const std::string_view good = sources_[0].text;
  sources_[0].text = "extern \"C\" __global__ void scale() { broken; }\n";
  auto cache = this->cache(options());
  for (std::uint64_t attempt = 1; attempt <= 2; ++attempt) {  // a failure is not cached
    try {
      cache->get(scale_spec());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::compile_failed);
      EXPECT_THAT(error.log(), HasSubstr("broken"));
    }
    EXPECT_EQ(cache->stats().failed, attempt);
  }
  EXPECT_THAT(files_below(*options().cache_dir), SizeIs(0));
  sources_[0].text = good;
  EXPECT_EQ(cache->get(scale_spec())->origin, Origin::compiled);
  EXPECT_EQ(cache->stats().compiled, 1u);
}

// Nothing tells when a thread waits for a lock, so the first attempt is held for a while; longer in a next
// round, should the machine have been too busy.
TEST_F(KernelCacheTest, WaitersShareOneFailure) {
  sources_[0].text = "extern \"C\" __global__ void scale() { broken; }\n";
  std::uint64_t failed = 0;
  for (int hold_ms = 50; hold_ms < 10000 && failed != 1; hold_ms *= 4) {
    std::atomic<int> entered{0}, with_log{0};
    CacheOptions options = this->options();
    options.on_compile = [&](const std::string& text) {
      if (!text.starts_with("compiling")) return;
      while (entered < 4) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(hold_ms));
    };
    auto cache = this->cache(options);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        ++entered;
        try {
          cache->get(scale_spec());
        } catch (const Error& error) {
          if (error.log().find("broken") != std::string::npos) ++with_log;
        }
      });
    threads.clear();
    EXPECT_EQ(with_log, 4);
    failed = cache->stats().failed;
  }
  EXPECT_EQ(failed, 1u);
}

TEST_F(KernelCacheTest, DamagedEntriesAreCompiledAgain) {
  cache(options())->get(scale_spec());
  const auto files = files_below(*options().cache_dir, kCubinSuffix);
  ASSERT_THAT(files, SizeIs(1));
  write_file(files[0], read_file(files[0]).substr(0, 300));
  auto cache = this->cache(options());
  EXPECT_EQ(cache->get(scale_spec())->origin, Origin::compiled);
  EXPECT_EQ(cache->stats().corrupt, 1u);
  EXPECT_EQ(this->cache(options())->get(scale_spec())->origin, Origin::disk);
}

TEST_F(KernelCacheTest, MemoryOnlyWorks) {
  auto cache = this->cache(memory_only());
  EXPECT_EQ(cache->get(scale_spec())->origin, Origin::compiled);
  EXPECT_EQ(cache->get(scale_spec())->origin, Origin::memory);
  EXPECT_EQ(cache->directory(), "");
  EXPECT_TRUE(lines_.warnings.empty());
}

TEST_F(KernelCacheTest, AnUnusableFolderStillCompiles) {
  write_file(dir_.path() / "cache", "a file");
  auto cache = this->cache(options());
  EXPECT_EQ(cache->get(scale_spec())->origin, Origin::compiled);
  EXPECT_EQ(cache->get(scale_spec(4))->origin, Origin::compiled);
  EXPECT_THAT(lines_.warnings, SizeIs(1));
}

TEST_F(KernelCacheTest, GetAllReportsFailuresByIndex) {
  auto cache = this->cache(options());
  std::vector<KernelSpec> specs;
  for (int i = 0; i < 6; ++i) specs.push_back(scale_spec(i));
  specs[3].add_typed("int", "kBroken", "not_a_value");
  specs[4].arch = "sm_1";
  std::vector<std::string> errors;
  std::vector<std::size_t> progress;
  const auto kernels = cache->get_all(specs, &errors, [&](std::size_t done) { progress.push_back(done); });
  ASSERT_THAT(kernels, SizeIs(6));
  for (std::size_t i = 0; i < 6; ++i) {
    const bool bad = i == 3 || i == 4;
    EXPECT_EQ(kernels[i] == nullptr, bad) << i;
    EXPECT_EQ(errors[i].empty(), !bad) << i;
  }
  EXPECT_THAT(errors[3], HasSubstr("not_a_value"));
  EXPECT_THAT(errors[4], HasSubstr("sm_1"));
  EXPECT_THAT(progress, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(KernelCacheTest, CompilesAreAnnouncedBeforeAndAfter) {
  std::vector<std::string> texts;
  CacheOptions options = memory_only();
  options.on_compile = [&](const std::string& text) { texts.push_back(text); };
  cache(options)->get(scale_spec());
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[0], "compiling scale for sm_80 [kThreads=128 kFactor=3]");
  EXPECT_THAT(texts[1], HasSubstr("compiled scale for sm_80 [kThreads=128 kFactor=3] in "));
  EXPECT_EQ(lines_.all, texts);
}

TEST_F(KernelCacheTest, SupportedArchs) {
  EXPECT_THAT(cache(memory_only())->supported_archs(), ::testing::IsSupersetOf({"sm_80", "sm_90"}));
}

}  // namespace
}  // namespace bdcp::jit
