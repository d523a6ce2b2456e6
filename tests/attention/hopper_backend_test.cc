// What the Hopper backend takes, without a GPU.
#include <gtest/gtest.h>

#include "attention/harness.h"
#include "attention/hopper_backward.h"

namespace bdcp::test {
namespace {

device::DeviceFacts facts_of(const char* arch) {
  device::DeviceFacts facts;
  facts.ordinal = 1;
  facts.arch = arch;
  facts.cc_major = arch[3] - '0';
  return facts;
}

TEST(HopperBackend, RefusesByName) {
  const auto hopper = attention::make_hopper_backend();
  const attention::Options options;
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

// Its backward runs whatever its forward runs: no pair of head dims asks for more shared memory than there is.
TEST(HopperBackend, BackwardFitsEveryPairOfHeadDims) {
  const auto hopper = attention::make_hopper_backend();
  const device::DeviceFacts facts = facts_of("sm_90a");
  const attention::Options options;
  for (int dim = 8; dim <= 256; dim += 8)
    for (int dim_v = 8; dim_v <= 256; dim_v += 8) {
      const CallShape shape = make_shape(4, 2, dim, DType::bf16, dim_v);
      ASSERT_TRUE(hopper->can(shape, {&facts}, options).ok);
      for (const bool whole : {false, true})
        EXPECT_LE(attention::hopper_backward_smem(shape, attention::hopper_backward_config(shape, whole)),
                  227 * 1024)
            << dim << " " << dim_v;
    }
}

TEST(HopperBackend, ShortDocumentsHaveABackwardKernel) {
  const auto whole = [](int dim, int dim_v, std::vector<std::int64_t> lengths, attention::Options options = {},
                        attention::GraphRoom room = {}) {
    return attention::has_whole_rows_only(make_shape(4, 2, dim, DType::bf16, dim_v),
                                          single_rank_plan(from_lengths(lengths, 3, "lengths")), options, room);
  };
  EXPECT_TRUE(whole(128, 128, {1, 128, 0, 64}));
  EXPECT_TRUE(whole(64, 64, {}));
  EXPECT_FALSE(whole(128, 128, {1, 129, 64}));
  EXPECT_FALSE(whole(64, 136, {1, 64}));                         // wide heads
  EXPECT_FALSE(whole(128, 128, {1, 64}, {}, {.documents = 2}));  // later layouts may be others
  // Or a document's bits would depend on whether another one is long.
  EXPECT_FALSE(whole(128, 128, {1, 64}, {.batch_invariant = true}));
}

TEST(HopperBackend, BackwardKernelsAreItsOwn) {
  const auto hopper = attention::make_hopper_backend();
  attention::Options options;
  CallShape shape = make_shape(8, 2, 128, DType::bf16);
  const auto count = [&] {
    int own = 0;
    for (const jit::KernelSpec& spec : hopper->required_kernels(shape, "sm_90a", false, options))
      own += spec.kernel.starts_with("hopper_backward");
    return own;
  };
  EXPECT_EQ(count(), 4);  // one of them for short documents
  options.batch_invariant = true;
  EXPECT_EQ(count(), 3);
  shape.backward = false;
  EXPECT_EQ(count(), 0);
}

}  // namespace
}  // namespace bdcp::test
