// What the Hopper backend takes, without a GPU.
#include <gtest/gtest.h>

#include "attention/harness.h"
#include "attention/options.h"

namespace bdcp::test {
namespace {

device::DeviceFacts facts_of(const char* arch) {
  device::DeviceFacts facts;
  facts.ordinal = 1;
  facts.arch = arch;
  facts.cc_major = arch[3] - '0';
  return facts;
}

TEST(HopperBackend, RunsOnlyWhereItIsNamed) {
  const auto hopper = attention::make_hopper_backend();
  const CallShape shape = make_shape(8, 2, 128, DType::bf16);
  const device::DeviceFacts facts = facts_of("sm_90a");
  PolicyValues values;
  const plan::Verdict verdict = hopper->can(shape, {&facts}, attention::options_of(values));
  EXPECT_EQ(verdict.code, "unproven");
  EXPECT_NE(verdict.text.find("attention.backend"), std::string::npos) << verdict.text;
  EXPECT_TRUE(hopper->required_kernels(shape, "sm_90a", false, attention::options_of(values)).empty());
  values.attention.backend = BackendKind::hopper;
  const attention::Options named = attention::options_of(values);
  EXPECT_TRUE(hopper->can(shape, {&facts}, named).ok);
  EXPECT_FALSE(hopper->required_kernels(shape, "sm_90a", false, named).empty());
}

TEST(HopperBackend, RefusesByName) {
  const auto hopper = attention::make_hopper_backend();
  attention::Options options;
  options.unproven = true;
  const device::DeviceFacts facts = facts_of("sm_90a"), older = facts_of("sm_80");
  const auto code = [&](const CallShape& shape) { return hopper->can(shape, {&facts}, options).code; };
  const CallShape shape = make_shape(8, 2, 128, DType::bf16);
  EXPECT_EQ(hopper->can(shape, {}, options).code, "needs_cuda");
  EXPECT_EQ(hopper->can(shape, {&older}, options).code, "arch");
  EXPECT_EQ(code(make_shape(8, 2, 128, DType::f32)), "dtype");
  EXPECT_EQ(code(make_shape(8, 2, 100, DType::bf16)), "head_dim");
  EXPECT_EQ(code(make_shape(8, 2, 264, DType::bf16)), "head_dim");
  CallShape dropout = shape;
  dropout.dropout_p = 0.5F;
  EXPECT_EQ(code(dropout), "dropout");
  EXPECT_EQ(code(shape), "");
}

}  // namespace
}  // namespace bdcp::test
