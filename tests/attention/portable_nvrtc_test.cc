// The portable kernels compile without spills for dims, ratios, archs and alignments.
#include <gtest/gtest.h>

#include <vector>

#include "attention/harness.h"

namespace bdcp::test {
namespace {

TEST(PortableNvrtc, NoSpillsAndWithinSharedMemory) {
  jit::CacheOptions options;
  options.cache_dir = "";
  jit::KernelCache cache(options, Env::from_process(), nullptr);
  if (const std::string why = cache.why_no_compiler(); !why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  const auto backend = attention::make_portable_backend();
  std::vector<jit::KernelSpec> specs;
  // (The model list of autotune_shipped_kernels_test covers d128 and d256.)
  const std::pair<CallShape, const char*> shapes[] = {
      {make_shape(2, 2, 64, DType::bf16), "sm_90a"},       {make_shape(3, 1, 96, DType::f16), "sm_80"},
      {make_shape(8, 1, 192, DType::bf16, 128), "sm_90a"}, {make_shape(7, 1, 128, DType::f16), "sm_86"},
      {make_shape(1, 1, 192, DType::bf16), "sm_86"},       {make_shape(5, 1, 40, DType::f16, 72), "sm_120"},
  };
  for (const auto& [shape, arch] : shapes)
    for (auto& spec : backend->required_kernels(shape, arch, true, {})) specs.push_back(std::move(spec));
  EXPECT_EQ(specs.size(), std::size(shapes) * 10);
  // dQ by query tiles has a register budget of its own on every arch, and so has what 99 KB leave of a 256-wide
  // backward.
  const auto add = [&](const CallShape& shape, const char* arch, const char* kernel) {
    attention::Options deterministic;
    deterministic.deterministic = true;
    const auto all = backend->required_kernels(shape, arch, true, deterministic);
    EXPECT_EQ(all.size(), 10u) << arch;
    for (const auto& spec : all)
      if (spec.kernel == kernel) specs.push_back(spec);
  };
  for (const char* arch : {"sm_80", "sm_86", "sm_90a", "sm_120"})
    for (const int dim : {128, 256}) add(make_shape(4, 1, dim, DType::bf16), arch, "portable_backward_dq");
  for (const char* arch : {"sm_86", "sm_90a"})
    for (const auto& [dim, dim_v] : {std::pair{64, 64}, {96, 72}, {192, 128}})
      add(make_shape(3, 1, dim, DType::f16, dim_v), arch, "portable_backward_dq");
  for (const char* arch : {"sm_86", "sm_120"})
    add(make_shape(2, 1, 256, DType::bf16), arch, "portable_backward");
  // K and V so unlike in width that fewer rows than threads are copied at a time.
  add(make_shape(1, 1, 128, DType::bf16, 32), "sm_86", "portable_backward");
  add(make_shape(1, 1, 192, DType::f16, 24), "sm_86", "portable_backward");
  add(make_shape(1, 1, 256, DType::bf16, 32), "sm_90a", "portable_backward_dq");
  add(make_shape(1, 1, 8, DType::f16, 168), "sm_120", "portable_backward_dq");
  std::vector<std::string> errors;
  const auto kernels = cache.get_all(specs, &errors);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    ASSERT_TRUE(kernels[i]) << errors[i];
    std::string name = specs[i].kernel + " " + specs[i].arch;
    for (const auto& constant : specs[i].constants) name += " " + constant.name + "=" + constant.value;
    EXPECT_EQ(kernels[i]->spill_bytes, 0) << name;
    EXPECT_LE(specs[i].dynamic_smem, (specs[i].arch == "sm_90a"  ? 227
                                      : specs[i].arch == "sm_80" ? 163
                                                                 : 99) *
                                         1024)
        << name;
  }
}

}  // namespace
}  // namespace bdcp::test
