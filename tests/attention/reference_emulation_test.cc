// The reference kernels' logic, without a GPU: the same source, work list and arguments, on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attention/emulated_kernels.h"
#include "attention/emulation.h"
#include "attention/harness.h"
#include "attention/reference_work.h"
#include "attention/split.h"

namespace bdcp::test {
namespace {

using attention::Part;

class EmulatedAttention final : public attention::PreparedAttention {
 public:
  EmulatedAttention(const EmulatedKernels& kernels, const CallShape& shape, const plan::RankPlan& plan)
      : kernels_(kernels), shape_(shape), plan_(plan), work_(attention::make_reference_work(plan, shape)) {}
  std::size_t backward_workspace() const override {
    return static_cast<std::size_t>(plan_.rows) * shape_.heads_q * sizeof(float);
  }
  void forward(const attention::ForwardCall& call, Part part, Stream) const override {
    auto args = attention::reference_args(shape_, plan_, call);
    launch(kernels_.forward, args, work_.rows, part, shape_.heads_q);
  }
  void backward(const attention::BackwardCall& call, Part part, Stream) const override {
    auto args = attention::reference_args(shape_, plan_, call);
    launch(kernels_.dq, args, work_.rows, part, shape_.heads_q);
    launch(kernels_.dkv, args, work_.keys, part, shape_.heads_kv);
  }

 private:
  template <class Args>
  void launch(void (*body)(const void*), Args& args, const attention::ReferenceWork::Items& items, Part part,
              int heads) const {
    std::vector<kernel::ReferenceItem> list = part == Part::local ? items.local : items.remote;
    const int count = static_cast<int>(list.size());
    if (part == Part::local) {  // as in a graph class: the grid goes on where there are no items
      list.resize(list.size() + 2, {1 << 30, 1 << 30, (1 << 30) + 32});
      args.item_count = &count;
    } else {
      args.item_count = nullptr;
    }
    args.segments = work_.segments.data();
    args.items = list.data();
    for (unsigned block = 0; block < list.size() * heads; ++block)
      emulation::run_block(block, 256, body, &args);
  }
  const EmulatedKernels& kernels_;
  CallShape shape_;
  plan::RankPlan plan_;
  attention::ReferenceWork work_;
};

CallShape shape_of(const EmulatedKernels& kernels, int heads_kv) {
  return make_shape(kernels.ratio * heads_kv, heads_kv, kernels.head_dim, kernels.dtype, kernels.head_dim_v);
}

Outputs run_emulated(const EmulatedKernels& kernels, const Case& c, const Data& data) {
  return run(EmulatedAttention(kernels, c.shape, single_rank_plan(c.layout)), c, data);
}

TEST(ReferenceKernels, MatchOracleOnTrickyLayouts) {
  int i = 0;
  for (const RaggedLayout& layout : tricky_layouts()) {
    if (layout.rows() > 300) continue;
    Case c;
    c.layout = layout;
    const EmulatedKernels& kernels = i % 2 ? emulated_bf16() : emulated_narrow();
    c.shape = shape_of(kernels, 1);
    c.order = static_cast<HostTensor::Order>(i % 3);
    c.seed = 50 + i++;
    const Data data = make_data(c);
    expect_oracle(c, data, run_emulated(kernels, c, data));
  }
}

TEST(ReferenceKernels, EveryConfiguration) {
  for (const EmulatedKernels* kernels :
       {&emulated_narrow(), &emulated_half(), &emulated_bf16(), &emulated_dropout(), &emulated_wide()}) {
    Case c;
    c.layout = from_lengths({37, 2, 0, 33}, {50, 1, 3, 33}, 3, 2, "configurations");
    c.shape = shape_of(*kernels, kernels->head_dim > 200 ? 1 : 2);
    c.order = HostTensor::Order::padded;
    if (kernels->dropout) {
      c.shape.dropout_p = 0.3;
      c.dropout = {0xfedcba9876543210ull, 5};
    }
    const Data data = make_data(c);
    expect_oracle(c, data, run_emulated(*kernels, c, data));
  }
}

TEST(ReferenceKernels, PoisonStaysInItsDocument) {
  Case c;
  c.layout = from_lengths({33, 5, 40}, 3, "poison");
  c.shape = shape_of(emulated_bf16(), 1);
  const Data clean = make_data(c);
  const Outputs expected = run_emulated(emulated_bf16(), c, clean);
  Data data = clean;
  for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->poison(33, 38);
  const Outputs outputs = run_emulated(emulated_bf16(), c, data);
  expect_same_bits(outputs, expected, 0, 33, 0, 33);
  expect_same_bits(outputs, expected, 38, c.layout.rows(), 38, c.layout.rows());
  EXPECT_TRUE(std::isnan(outputs.out.at(33, 0, 0)));
  EXPECT_TRUE(std::isnan(outputs.lse.data[33]));
  EXPECT_TRUE(std::isnan(outputs.dk.at(33, 0, 0)));
}

TEST(ReferenceKernels, LaterTokensChangeNoEarlierRow) {
  Case c;
  c.layout = from_lengths({45}, 0, "causal");
  c.shape = shape_of(emulated_narrow(), 1);
  const Data clean = make_data(c);
  const Outputs expected = run_emulated(emulated_narrow(), c, clean);
  Data data = clean;
  data.k.poison(35, 45);
  data.v.poison(35, 45);
  const Outputs outputs = run_emulated(emulated_narrow(), c, data);
  EXPECT_TRUE(outputs.out.same_bits(expected.out, 0, 35));
  EXPECT_TRUE(outputs.dq.same_bits(expected.dq, 0, 35));
}

TEST(ReferenceKernels, RanksTogetherEqualTheWhole) {
  for (const EmulatedKernels* kernels : {&emulated_narrow(), &emulated_half()}) {
    Case c;
    c.layout = from_lengths({10, 50, 20}, 4, "ranks");
    c.shape = shape_of(*kernels, 1);
    const Data data = make_data(c);
    attention::Options options;
    options.payload_f32 = kernels->payload == DType::f32;
    const auto prepare =
        [&](const plan::RankPlan& plan) -> std::shared_ptr<const attention::PreparedAttention> {
      return std::make_shared<EmulatedAttention>(*kernels, c.shape, plan);
    };
    expect_ranks_equal_whole(c, data, 3, options, prepare);
  }
}

}  // namespace
}  // namespace bdcp::test
