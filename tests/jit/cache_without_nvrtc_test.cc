// What a KernelCache does on a machine that cannot compile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bdcp/error.h"
#include "jit/cubin_store.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using testing::env_without_nvrtc;
using ::testing::HasSubstr;
using testing::Lines;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;

class CacheWithoutNvrtc : public ::testing::Test {
 protected:
  void fill(const std::string& root, const KernelSpec& spec) {
    const SpecKey key = make_spec_key(spec, sources_);
    CubinRecord record;
    record.nvrtc_build = "elsewhere";
    record.key_text = key.text(record.nvrtc_build);
    record.kernel = spec.kernel;
    record.arch = spec.arch;
    record.cubin.assign(64, 'c');
    record.registers = 12;
    record.static_smem = 512;
    CubinStore store({root, ""}, {}, {});
    ASSERT_TRUE(store.publish(key, record));
  }
  CacheOptions options() {
    CacheOptions options;
    options.cache_dir = dir_.str() + "/cache";
    return options;
  }
  const std::vector<EmbeddedFile> sources_ = scale_sources();
  TempDir dir_;
  Lines lines_;
};

TEST_F(CacheWithoutNvrtc, AMissIsANamedError) {
  KernelCache cache(options(), env_without_nvrtc(), lines_.log(), sources_);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    try {
      cache.get(scale_spec());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::library_missing);
      EXPECT_THAT(error.message(), HasSubstr("BDCP_LIBNVRTC"));
    }
    EXPECT_EQ(cache.stats().failed, static_cast<std::uint64_t>(attempt));
  }
  EXPECT_NE(cache.why_no_compiler(), "");
  EXPECT_THROW(cache.supported_archs(), Error);
}

TEST_F(CacheWithoutNvrtc, SeedsOfAnyBuildServe) {
  fill(dir_.str() + "/seed", scale_spec());
  CacheOptions with_seed = options();
  with_seed.seed_dirs = {dir_.str() + "/seed"};
  KernelCache cache(with_seed, env_without_nvrtc(), lines_.log(), sources_);
  const auto kernel = cache.get(scale_spec());
  EXPECT_EQ(kernel->origin, CompiledKernel::Origin::seed);
  EXPECT_EQ(kernel->nvrtc_build, "elsewhere");
  EXPECT_THAT(kernel->key_text, HasSubstr("nvrtc elsewhere\n"));
  EXPECT_EQ(kernel->key.size(), 32u);
  EXPECT_EQ(cache.get(scale_spec())->origin, CompiledKernel::Origin::memory);
  EXPECT_EQ(cache.stats().seed_hits, 1u);
  EXPECT_EQ(cache.stats().memory_hits, 1u);
  EXPECT_EQ(cache.stats().misses, 0u);
}

TEST_F(CacheWithoutNvrtc, SpecsThatDifferInDynamicMemoryShareACubin) {
  fill(options().cache_dir.value(), scale_spec());
  KernelCache cache(options(), env_without_nvrtc(), lines_.log(), sources_);
  KernelSpec large = scale_spec();
  large.dynamic_smem = 1000;
  const auto a = cache.get(scale_spec());
  const auto b = cache.get(large);
  EXPECT_EQ(a->cubin, b->cubin);
  EXPECT_EQ(a->smem_bytes, 512);
  EXPECT_EQ(b->smem_bytes, 1512);
  EXPECT_EQ(b->spec, large);
  EXPECT_EQ(cache.stats().disk_hits, 1u);
}

TEST_F(CacheWithoutNvrtc, ThePolicyCanForbidCompiling) {
  for (const auto on_miss : {PolicyValues::OnMiss::fallback, PolicyValues::OnMiss::error}) {
    CacheOptions forbidding = options();
    forbidding.on_miss = on_miss;
    KernelCache cache(forbidding, env_without_nvrtc(), lines_.log(), sources_);
    try {
      cache.get(scale_spec());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::compile_failed);
      EXPECT_THAT(error.message(), HasSubstr("kernels.on_miss"));
    }
  }
}

TEST_F(CacheWithoutNvrtc, AFolderThatCannotBeUsedIsOneWarning) {
  KernelCache cache({}, env_without_nvrtc(), lines_.log(), sources_);
  EXPECT_EQ(cache.directory(), "");
  EXPECT_TRUE(lines_.warnings.empty());  // nothing was asked of the cache yet
  EXPECT_THROW(cache.get(scale_spec(3)), Error);
  EXPECT_THROW(cache.get(scale_spec(4)), Error);
  ASSERT_EQ(lines_.warnings.size(), 1u);
  EXPECT_THAT(lines_.warnings[0], HasSubstr("HOME"));
}

}  // namespace
}  // namespace bdcp::jit
