// The Hopper kernels compile without spills and without advisories of ptxas for every kind of shape and
// layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/harness.h"
#include "attention/hopper_backward.h"
#include "attention/hopper_config.h"

namespace bdcp::test {
namespace {

void expect_clean(const std::vector<jit::KernelSpec>& specs) {
  jit::CacheOptions options;
  options.cache_dir = "";
  jit::KernelCache cache(options, Env::from_process(), nullptr);
  if (const std::string why = cache.why_no_compiler(); !why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  std::vector<std::string> errors;
  const auto kernels = cache.get_all(specs, &errors);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    std::string name;
    for (const auto& constant : specs[i].constants) name += " " + constant.name + "=" + constant.value;
    ASSERT_TRUE(kernels[i]) << name << errors[i];
    EXPECT_EQ(kernels[i]->spill_bytes, 0) << name;
    // setmaxnreg ignored (C7508); wgmma serialised (C7510 and following).
    EXPECT_EQ(kernels[i]->log.find("(C75"), std::string::npos) << name << "\n" << kernels[i]->log;
    EXPECT_LE(specs[i].dynamic_smem, 227 * 1024) << name;
  }
}

TEST(HopperNvrtc, ForwardWithoutSpillsAndAdvisories) {
  const CallShape shapes[] = {
      make_shape(32, 8, 128, DType::bf16),     make_shape(1, 1, 128, DType::f16),
      make_shape(7, 1, 64, DType::bf16),       make_shape(6, 2, 96, DType::bf16),
      make_shape(8, 1, 192, DType::bf16, 128), make_shape(2, 2, 192, DType::f16),
      make_shape(8, 8, 256, DType::bf16),      make_shape(5, 1, 40, DType::f16, 72),
  };
  std::vector<jit::KernelSpec> specs;
  for (const CallShape& shape : shapes)
    for (int variant = 0; variant <= attention::kHopperLayouts; ++variant) {
      const bool staged = variant == attention::kHopperLayouts;
      const auto layout =
          staged ? attention::HopperLayout::long_docs : static_cast<attention::HopperLayout>(variant);
      const auto spec = attention::hopper_forward_spec(shape, "sm_90a", layout, staged);
      if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
    }
  expect_clean(specs);
}

TEST(HopperNvrtc, BackwardWithoutSpillsAndAdvisories) {
  const CallShape shapes[] = {
      make_shape(32, 8, 128, DType::bf16),  make_shape(1, 1, 128, DType::f16),
      make_shape(7, 1, 64, DType::bf16),    make_shape(6, 2, 96, DType::bf16),
      make_shape(5, 1, 40, DType::f16, 72), make_shape(5, 1, 8, DType::bf16, 16),
      make_shape(8, 8, 256, DType::bf16),   make_shape(8, 1, 192, DType::bf16, 128),
      make_shape(1, 1, 256, DType::f16),    make_shape(2, 1, 64, DType::f16, 136),
  };
  std::vector<jit::KernelSpec> specs;
  bool deterministic = false;
  for (const CallShape& shape : shapes) {
    attention::Options options;
    options.deterministic = deterministic = !deterministic;
    options.payload_f32 = deterministic;
    for (const bool whole : {false, true})
      for (const jit::KernelSpec& spec : attention::hopper_backward_specs(shape, whole, "sm_90a", options))
        if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }
  expect_clean(specs);
}

}  // namespace
}  // namespace bdcp::test
