// Sharded runs against the oracle and against each other: the three paths, any world size, poison, dropout.
#include <gtest/gtest.h>

#include "check/oracle.h"
#include "step/world.h"
#include "support/layouts.h"
#include "support/numbers.h"

namespace bdcp::test {
namespace {

std::string policy(const std::string& path, const std::string& more = "") {
  return "{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"" + path + "\"" + more + "}}";
}

void expect_oracle(const DocLayout& layout, const CallShape& shape, const GlobalInputs& in,
                   const GlobalResults& got) {
  const check::Problem problem = check::Problem::from(shape, layout);
  const check::Inputs inputs{in.q.view(), in.k.view(), in.v.view(), in.dout.view()};
  const check::Results want = check::oracle(problem, inputs);
  const check::Results rounded = check::oracle_rounded(problem, inputs, shape.dtype);
  EXPECT_TRUE(numbers_pass(check::Quantity::out, shape.dtype, got.out.values(), want.out, &rounded.out));
  EXPECT_TRUE(numbers_pass(check::Quantity::lse, shape.dtype, got.lse.values(), want.lse));
  EXPECT_TRUE(numbers_pass(check::Quantity::gradient, shape.dtype, got.dq.values(), want.dq, &rounded.dq));
  EXPECT_TRUE(numbers_pass(check::Quantity::gradient, shape.dtype, got.dk.values(), want.dk, &rounded.dk));
  EXPECT_TRUE(numbers_pass(check::Quantity::gradient, shape.dtype, got.dv.values(), want.dv, &rounded.dv));
}

TEST(StepParity, ThreePathsMatchTheOracleAndEachOther) {
  RandomLayouts random(7);
  const CallShape shapes[] = {
      {.heads_q = 4, .heads_kv = 2, .head_dim = 16, .dtype = DType::f32},
      {.heads_q = 3, .heads_kv = 1, .head_dim = 24, .head_dim_v = 8, .dtype = DType::bf16},
      {.heads_q = 2, .heads_kv = 2, .head_dim = 8, .dtype = DType::f16, .scale = 0.5},
  };
  for (int kind = 0; kind < RandomLayouts::kKinds; ++kind)
    for (int world : {2, 3, 5}) {
      const LayoutCase one = random.next(world, 96, kind);
      const CallShape& shape = shapes[(kind + world) % 3];
      SCOPED_TRACE(testing::Message() << one);
      const DocLayout layout = one.layout();
      const GlobalInputs inputs(layout, shape, static_cast<std::uint64_t>(kind * 10 + world));
      const GlobalResults gathered = run_world(layout, shape, inputs, {.policy = policy("allgather")});
      expect_oracle(layout, shape, inputs, gathered);
      for (const char* path : {"halo", "a2a"}) {
        const GlobalResults other = run_world(layout, shape, inputs, {.policy = policy(path)});
        EXPECT_TRUE(other.same_bits(gathered)) << path;
        const bool fits = other.decisions[0].path == ExchangePath::halo;
        if (std::string(path) == "halo" && !fits) {
          ASSERT_EQ(other.decisions[0].path, ExchangePath::a2a);
          bool named = false;
          for (const Downgrade& d : other.decisions[0].downgrades) named |= d.code == "halo_infeasible";
          EXPECT_TRUE(named);
        }
        for (const Decision& decision : other.decisions) {
          EXPECT_EQ(decision.path, other.decisions[0].path);
          EXPECT_EQ(decision.downgrades, other.decisions[0].downgrades);
        }
      }
    }
}

TEST(StepParity, KeptKvAndInputPayload) {
  const CallShape shape{.heads_q = 4, .heads_kv = 2, .head_dim = 16, .dtype = DType::f32};
  const DocLayout layout = DocLayout::from_lengths(std::vector<std::int64_t>{50, 9, 31}, {.world_size = 3});
  const GlobalInputs inputs(layout, shape, 3);
  const GlobalResults plain = run_world(layout, shape, inputs, {.policy = policy("a2a")});
  const GlobalResults kept =
      run_world(layout, shape, inputs, {.policy = policy("a2a", ", \"backward_kv\": \"keep\"")});
  EXPECT_TRUE(kept.same_bits(plain));
  // f32 inputs: the input's dtype on the wire is f32 too, so that nothing may change.
  const GlobalResults input =
      run_world(layout, shape, inputs, {.policy = policy("halo", ", \"grad_payload\": \"input\"")});
  EXPECT_TRUE(input.same_bits(plain));
  // bf16: partials are rounded on the way, within the limits of the dtype.
  CallShape half = shape;
  half.dtype = DType::bf16;
  const GlobalInputs half_inputs(layout, half, 3);
  expect_oracle(
      layout, half, half_inputs,
      run_world(layout, half, half_inputs, {.policy = policy("a2a", ", \"grad_payload\": \"input\"")}));
}

TEST(StepParity, PoisonedDocumentAndPaddingChangeNoOtherRow) {
  const CallShape shape{.heads_q = 4, .heads_kv = 2, .head_dim = 8, .dtype = DType::f32};
  const std::vector<std::int64_t> lengths{20, 35, 1, 30};
  const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = 4, .padding_tokens = 10});
  const GlobalInputs clean(layout, shape, 11);
  for (const char* path : {"allgather", "halo", "a2a"}) {
    const GlobalResults want = run_world(layout, shape, clean, {.policy = policy(path)});
    std::int64_t begin = 0;
    for (std::int64_t length : lengths) {
      GlobalInputs bad = clean;
      for (HostTensor* tensor : {&bad.q, &bad.k, &bad.v, &bad.dout}) {
        tensor->poison(begin, begin + length);
        tensor->poison(layout.real_tokens(), layout.padded_tokens());
      }
      const GlobalResults got = run_world(layout, shape, bad, {.policy = policy(path)});
      const std::int64_t end = begin + length, rows = layout.padded_tokens();
      const auto others_same = [&](const HostTensor& a, const HostTensor& b) {
        return a.same_bits(b, 0, begin) && a.same_bits(b, end, rows);
      };
      EXPECT_TRUE(others_same(got.out, want.out)) << path << " document at " << begin;
      EXPECT_TRUE(others_same(got.dq, want.dq)) << path << " document at " << begin;
      EXPECT_TRUE(others_same(got.dk, want.dk)) << path << " document at " << begin;
      EXPECT_TRUE(others_same(got.dv, want.dv)) << path << " document at " << begin;
      begin = end;
    }
    for (std::int64_t t = layout.real_tokens(); t < layout.padded_tokens(); ++t)
      for (int h = 0; h < shape.heads_q; ++h) {
        EXPECT_EQ(want.out.at(t, h, 0), 0.0);
        EXPECT_EQ(want.lse.data[static_cast<std::size_t>(h * layout.padded_tokens() + t)],
                  -std::numeric_limits<float>::infinity());
      }
  }
}

TEST(StepParity, DropoutMasksAreTheSameForEveryWorldAndPath) {
  const CallShape shape{.heads_q = 2, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32, .dropout_p = 0.3};
  const std::vector<std::int64_t> lengths{40, 23, 17};
  const DocLayout single = DocLayout::from_lengths(lengths, {.padding_tokens = 4});
  const GlobalInputs inputs(single, shape, 5);
  const GlobalResults want = run_world(single, shape, inputs, {.policy = policy("auto")});
  CallShape plain = shape;
  plain.dropout_p = 0;
  EXPECT_FALSE(run_world(single, plain, inputs, {.policy = policy("auto")}).out.same_bits(want.out));
  for (int world : {2, 3})
    for (const char* path : {"allgather", "halo", "a2a"}) {
      const DocLayout layout = DocLayout::from_lengths(lengths, {.world_size = world, .padding_tokens = 4});
      ASSERT_EQ(layout.padded_tokens(), single.padded_tokens());
      const GlobalResults got = run_world(layout, shape, inputs, {.policy = policy(path)});
      EXPECT_TRUE(numbers_pass(check::Quantity::out, DType::f32, got.out.values(), want.out.values()));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, got.dq.values(), want.dq.values()));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, got.dk.values(), want.dk.values()));
      EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::f32, got.dv.values(), want.dv.values()));
    }
}

TEST(StepParity, ManyTinyDocuments) {
  const CallShape shape{.heads_q = 2, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};
  const DocLayout ones = DocLayout::from_lengths(std::vector<std::int64_t>(8192, 1), {.world_size = 4});
  const GlobalInputs inputs(ones, shape, 9);
  expect_oracle(ones, shape, inputs, run_world(ones, shape, inputs, {.policy = policy("auto")}));
}

}  // namespace
}  // namespace bdcp::test
