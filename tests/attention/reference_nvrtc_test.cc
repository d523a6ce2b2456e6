// The reference kernels compile without spills for every dtype, dim and arch.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/harness.h"

namespace bdcp::test {
namespace {

class ReferenceNvrtc : public ::testing::Test {
 protected:
  ReferenceNvrtc() : cache_(memory_only(), Env::from_process(), nullptr) {}
  void SetUp() override {
    const std::string why = cache_.why_no_compiler();
    if (!why.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  }
  static jit::CacheOptions memory_only() {
    jit::CacheOptions options;
    options.cache_dir = "";
    return options;
  }
  void add(const CallShape& shape, const std::string& arch, attention::Options options = {}) {
    for (auto& spec : backend_->required_kernels(shape, arch, true, options)) specs_.push_back(std::move(spec));
  }
  void expect_clean() {
    std::vector<std::string> errors;
    const auto kernels = cache_.get_all(specs_, &errors);
    ASSERT_EQ(kernels.size(), specs_.size());
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      ASSERT_TRUE(kernels[i]) << errors[i];
      std::string name = specs_[i].kernel + " " + specs_[i].arch;
      for (const auto& constant : specs_[i].constants) name += " " + constant.name + "=" + constant.value;
      EXPECT_EQ(kernels[i]->spill_bytes, 0) << name;
      EXPECT_GT(kernels[i]->registers, 0) << name;
      EXPECT_LE(kernels[i]->smem_bytes, 48 * 1024) << name;
    }
  }

  jit::KernelCache cache_;
  std::unique_ptr<attention::Backend> backend_ = attention::make_reference_backend();
  std::vector<jit::KernelSpec> specs_;
};

constexpr int kDims[] = {16, 40, 64, 96, 128, 192, 256, 512};
constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};

// Each arch with each dtype at each dim, the kernels and dtypes in turn: all of them are compiled somewhere,
// and the most demanding (dK and dV) at the widest dims with every dtype.
TEST_F(ReferenceNvrtc, NoSpills) {
  for (const std::string arch : {"sm_80", "sm_90a"}) {
    int i = arch == "sm_80" ? 0 : 1;
    for (const int dim : kDims) add(make_shape(4, 1, dim, kDtypes[i++ % 3]), arch);
    add(make_shape(4, 1, 192, kDtypes[i++ % 3], 128), arch);
  }
  for (const DType dtype : kDtypes) add(make_shape(8, 8, 512, dtype), "sm_90a");
  expect_clean();
}

TEST_F(ReferenceNvrtc, DropoutPayloadAndOddShapes) {
  CallShape shape = make_shape(7, 1, 136, DType::bf16, 72);
  shape.dropout_p = 0.1;
  attention::Options options;
  options.payload_f32 = false;
  add(shape, "sm_80", options);
  add(make_shape(1, 1, 1, DType::f16, 500), "sm_90a");
  // Archs that this NVRTC no longer knows are another matter than kernels that do not compile.
  const auto archs = cache_.supported_archs();
  if (std::find(archs.begin(), archs.end(), "sm_75") != archs.end())
    add(make_shape(2, 1, 128, DType::f16), "sm_75");
  expect_clean();
}

}  // namespace
}  // namespace bdcp::test
