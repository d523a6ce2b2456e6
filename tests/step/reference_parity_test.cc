// The reference's public end-to-end cases (tests/data/reference_cases.json), on the host backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "check/oracle.h"
#include "comm/group.h"
#include "step/world.h"
#include "support/expect_error.h"
#include "support/numbers.h"
#include "support/reference_cases.h"

namespace bdcp::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

std::string policy(const std::string& path) {
  return "{\"attention\": {\"backend\": \"host\"}, \"exchange\": {\"path\": \"" + path + "\"}}";
}

DType dtype_of(const json& text) { return *parse_dtype(text.get<std::string>()); }

/// The metric of the reference's two-rank cases: max|got - ref| / max(max|ref|, 1e-3).
double relative(const std::vector<double>& got, const std::vector<double>& want, std::size_t count) {
  double worst = 0, largest = 1e-3;
  for (std::size_t i = 0; i < count; ++i) {
    worst = std::max(worst, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

double largest_error(const std::vector<double>& got, const std::vector<double>& want, std::size_t count) {
  double worst = 0;
  for (std::size_t i = 0; i < count; ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
  return worst;
}

struct Sharded {
  DocLayout layout;
  CallShape shape;
  GlobalInputs inputs;
  GlobalResults got;
  check::Results want;
  std::size_t real_out, real_kv;  // elements of real rows

  Sharded(const DocLayout& l, const CallShape& s, const std::string& policy_json, std::uint64_t seed)
      : layout(l),
        shape(s),
        inputs(l, s, seed),
        got(run_world(l, s, inputs, {.policy = policy_json, .hosts = {}})) {
    want = check::oracle(check::Problem::from(s, l),
                         {inputs.q.view(), inputs.k.view(), inputs.v.view(), inputs.dout.view()});
    real_out = static_cast<std::size_t>(l.real_tokens() * s.heads_q * s.dim_v());
    real_kv = static_cast<std::size_t>(l.real_tokens() * s.heads_kv * s.head_dim);
  }
};

TEST(ReferenceParity, CpuParity) {
  for (const json& one : reference_cases()["cpu_parity"]) {
    SCOPED_TRACE(one["id"]);
    const auto ids = one["doc_ids"].get<Lengths>();
    const DocLayout layout =
        DocLayout::from_doc_ids(std::span<const std::int64_t>(ids), {.world_size = one["world"]});
    const CallShape shape{
        .heads_q = one["Hq"], .heads_kv = one["Hkv"], .head_dim = one["D"], .dtype = DType::f32};
    const Sharded run(layout, shape, policy("allgather"), 1);
    EXPECT_LT(largest_error(run.got.out.values(), run.want.out, run.real_out), 1e-5);
  }
}

TEST(ReferenceParity, Passthrough) {
  // One document, world 1: plain causal attention.
  const json& one = reference_cases()["passthrough"][0];
  const int heads = one["shape"][1], tokens = one["shape"][2], dim = one["shape"][3];
  const Sharded run(DocLayout::from_lengths(Lengths{tokens}),
                    {.heads_q = heads, .heads_kv = heads, .head_dim = dim, .dtype = DType::f32}, policy("auto"),
                    2);
  EXPECT_LT(largest_error(run.got.out.values(), run.want.out, run.real_out), 1e-6);
  EXPECT_EQ(run.got.decisions[0].path, ExchangePath::local);
}

TEST(ReferenceParity, AllgatherForwardBackward) {
  // With V = x, one visible key per row and upstream ones, dV counts the rows that see a key: the gather's
  // backward sums over ranks. Here: a document over all ranks whose last row alone has weight on key 0 is too
  // contrived; instead each rank's gradient must equal the dense one, which is the same statement for any
  // attention.
  for (const json& one : reference_cases()["allgather_fwd_bwd"]) {
    const int world = one["world"], tokens = one["expect"]["out_shape"][2];
    const Sharded run(DocLayout::from_lengths(Lengths{tokens}, {.world_size = world}),
                      {.heads_q = 2, .heads_kv = 2, .head_dim = 8, .dtype = DType::f32}, policy("allgather"),
                      3);
    EXPECT_LT(relative(run.got.dk.values(), run.want.dk, run.real_kv), 2e-5);
    EXPECT_LT(relative(run.got.dv.values(), run.want.dv, run.real_kv), 2e-5);
    EXPECT_LT(relative(run.got.out.values(), run.want.out, run.real_out), 2e-5);
  }
}

TEST(ReferenceParity, AllPadRank) {
  const json& one = reference_cases()["all_pad_rank"][0];
  const auto ids = one["doc_ids"].get<Lengths>();
  const DocLayout layout = DocLayout::from_doc_ids(std::span<const std::int64_t>(ids), {.world_size = 2});
  // gap-fp16-touch: padding that would overflow or be NaN in any arithmetic leaves exact zeros.
  for (DType dtype : {DType::bf16, DType::f16}) {
    const CallShape shape{.heads_q = one["Hq"], .heads_kv = one["Hkv"], .head_dim = one["D"], .dtype = dtype};
    for (const char* path : {"allgather", "halo", "a2a"}) {
      GlobalInputs inputs(layout, shape, 4);
      for (HostTensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.dout}) tensor->poison(2, 4);
      const GlobalResults got = run_world(layout, shape, inputs, {.policy = policy(path), .hosts = {}});
      for (const HostTensor* tensor : {&got.out, &got.dq, &got.dk, &got.dv})
        for (std::int64_t t = 2; t < 4; ++t)
          for (std::int64_t h = 0; h < tensor->heads(); ++h)
            for (std::int64_t d = 0; d < tensor->dim(); ++d) {
              EXPECT_EQ(tensor->at(t, h, d), 0.0);
              EXPECT_FALSE(std::signbit(tensor->at(t, h, d)));
            }
    }
  }
}

TEST(ReferenceParity, TwoRank) {
  const json& two = reference_cases()["two_rank"];
  for (const json& one : two["matrix"]) {
    SCOPED_TRACE(one["id"]);
    json scenario;
    for (const json& candidate : two["scenarios"])
      if (candidate["name"] == one["scenario"]) scenario = candidate;
    const DocLayout layout =
        DocLayout::from_lengths(std::span<const std::int64_t>(scenario["doc_lens"].get<Lengths>()),
                                {.world_size = 2, .padding_tokens = scenario["pad"]});
    // A quarter of the heads keeps the float64 backend quick; heads are independent.
    const CallShape shape{.heads_q = 2, .heads_kv = 1, .head_dim = two["D"], .dtype = dtype_of(one["dtype"])};
    const Sharded run(layout, shape, policy(one["kv_exchange"]), two["seeds"]["x"]);
    EXPECT_EQ(to_string(run.got.decisions[0].path), one["expect_path"].get<std::string>());
    const double out = one["tol_out"], grad = one["tol_grad"];
    EXPECT_LT(relative(run.got.out.values(), run.want.out, run.real_out), out);
    EXPECT_LT(relative(run.got.dq.values(), run.want.dq, run.real_out), grad);
    EXPECT_LT(relative(run.got.dk.values(), run.want.dk, run.real_kv), grad);
    EXPECT_LT(relative(run.got.dv.values(), run.want.dv, run.real_kv), grad);
  }
}

TEST(ReferenceParity, VarlenGpu) {
  // The same layouts and shapes on the host backend; the GPU suite runs them on the kernels.
  const auto check_case = [](const json& one, int world) {
    SCOPED_TRACE(one["id"]);
    const DocLayout layout =
        DocLayout::from_lengths(std::span<const std::int64_t>(one["doc_lens"].get<Lengths>()),
                                {.world_size = world, .padding_tokens = one["pad"]});
    const CallShape shape{
        .heads_q = one["Hq"], .heads_kv = one["Hkv"], .head_dim = one["D"], .dtype = DType::bf16};
    const Sharded run(layout, shape, policy("auto"), 5);
    EXPECT_LT(largest_error(run.got.out.values(), run.want.out, run.real_out), 0.02);
    EXPECT_TRUE(numbers_pass(check::Quantity::gradient, DType::bf16, run.got.dk.values(), run.want.dk));
  };
  for (const json& one : reference_cases()["varlen_gpu"]["cases"]) check_case(one, one["world"]);
  check_case(find_case(reference_cases()["varlen_gpu_extra"], "vg-cp1hook-1"), 1);
}

TEST(ReferenceParity, VarlenDropout) {
  const json& one = find_case(reference_cases()["varlen_gpu_extra"], "vg-dropout");
  CallShape shape{.heads_q = one["Hq"], .heads_kv = one["Hkv"], .head_dim = one["D"], .dtype = DType::bf16};
  const DocLayout layout =
      DocLayout::from_lengths(std::span<const std::int64_t>(one["doc_lens"].get<Lengths>()));
  const Sharded plain(layout, shape, policy("auto"), 6);
  shape.dropout_p = one["dropout_p"];
  const GlobalResults dropped = run_world(layout, shape, plain.inputs, {.policy = policy("auto"), .hosts = {}});
  EXPECT_FALSE(dropped.out.same_bits(plain.got.out));
  for (const HostTensor* tensor : {&dropped.dq, &dropped.dk, &dropped.dv})
    for (double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
}

TEST(ReferenceParity, DropoutForwarded) {
  // The probability reaches the kernel: a share of the weights near it is dropped, the rest scaled by 1 / (1 -
  // p).
  const json& one = reference_cases()["dropout_forward"][0];
  const double p = one["dropout_p"];
  const DocLayout layout = DocLayout::from_lengths(Lengths{64, 64});
  CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 128, .dtype = DType::f32, .dropout_p = p};
  GlobalInputs inputs(layout, shape, 7);
  inputs.q.fill(0.0);  // equal weights
  inputs.v.fill(0.0);
  for (std::int64_t t = 0; t < 128; ++t) inputs.v.set(t, 0, t, 1.0);  // V = identity: O is the weight matrix
  const GlobalResults got = run_world(layout, shape, inputs, {.policy = policy("allgather"), .hosts = {}});
  int dropped = 0, seen = 0;
  for (std::int64_t i = 0; i < 128; ++i) {
    const std::int64_t first = i < 64 ? 0 : 64;
    for (std::int64_t j = first; j <= i; ++j, ++seen) {
      const double weight = got.out.at(i, 0, j);
      dropped += weight == 0.0;
      if (weight != 0.0) {
        EXPECT_NEAR(weight, 1.0 / static_cast<double>(i - first + 1) / (1 - p), 1e-6);
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / seen, p, 0.03);
}

TEST(ReferenceParity, FlashBoundary) {
  // First segments whose keys reach far to the left. Lengths up to about 2,000 here; the GPU suite runs all of
  // them.
  const json& group = reference_cases()["flash_boundary"];
  const std::int64_t local = group["local_len"];
  int run_count = 0;
  for (const json& one : group["cases"]) {
    const std::int64_t q = one["first_q"], k = one["first_k"], back = k - q;
    if (k > 1600 && !one.contains("n_tails")) continue;
    SCOPED_TRACE(one["id"]);
    // One rank's view: rank 1 of 2, shrunk to what the case needs.
    Lengths lengths{back + q};
    if (one.contains("n_tails")) {
      const std::int64_t tails = one["n_tails"], rest = local - q;
      if (back > 8191) lengths[0] = 1600 + q;
      for (std::int64_t i = 0; i < std::min<std::int64_t>(tails, 100); ++i)
        lengths.push_back(rest / tails + (i < rest % tails ? 1 : 0));
    }
    std::int64_t total = 0;
    for (std::int64_t length : lengths) total += length;
    const std::int64_t chunk = std::max(lengths[0] - q, total - (lengths[0] - q));
    Lengths all{chunk - (lengths[0] - q)};
    all.insert(all.end(), lengths.begin(), lengths.end());
    const DocLayout layout = DocLayout::from_lengths(
        std::span<const std::int64_t>(all), {.world_size = 2, .padding_tokens = 2 * chunk - (all[0] + total)});
    const CallShape shape{.heads_q = 2, .heads_kv = 1, .head_dim = 8, .dtype = DType::bf16};
    const GlobalResults got =
        run_world(layout, shape, GlobalInputs(layout, shape, 8), {.policy = policy("auto"), .hosts = {}});
    for (const HostTensor* tensor : {&got.out, &got.dq, &got.dk, &got.dv})
      for (double value : tensor->values()) ASSERT_TRUE(std::isfinite(value));
    ++run_count;
  }
  EXPECT_GE(run_count, 13);
}

TEST(ReferenceParity, PackedCp1) {
  // The plan is made once per step; every layer's call uses it, recompute included, and is counted.
  const json& one = find_case(reference_cases()["packed_cp1"], "cp1-once");
  const auto ids = one["doc_ids"].get<Lengths>();
  const CallShape shape{.heads_q = 2, .heads_kv = 2, .head_dim = 4, .dtype = DType::f32};
  const Runtime runtime = quiet_runtime(policy("auto"));
  const Step step = runtime.begin_step(DocLayout::from_doc_ids(std::span<const std::int64_t>(ids)), shape);
  EXPECT_EQ(step.layout().local_tokens(), 5);
  RankRun run(step, shape, GlobalInputs(step.layout(), shape, 9), 0);
  run.forward(step);
  const HostTensor first = run.out;
  run.forward(step);  // activation checkpointing: forward again inside backward
  EXPECT_TRUE(run.out.same_bits(first));
  EXPECT_EQ(step.forward_calls(), one["attention_calls"].get<std::uint64_t>());
  EXPECT_THAT(runtime.metrics_json(), HasSubstr("\"steps\":1"));
}

TEST(ReferenceParity, GroupMismatch) {
  const Runtime runtime = quiet_runtime(policy("auto"));
  const auto errors = on_ranks(4, [&](int, Communicator comm) {
    runtime.begin_step(DocLayout::from_lengths(Lengths{16}, {.world_size = 2}),
                       {.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32}, comm);
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("world_size() is 2, the communicator has 4 ranks"));
}

TEST(ReferenceParity, PreflightDevice) {
  // A fast kernel asked for by name on the host: an error that says what is missing, by the default policy.
  const Runtime runtime = quiet_runtime("{\"attention\": {\"backend\": \"portable\"}}");
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 64, .dtype = DType::bf16};
  expect_error(ErrorCode::backend_unavailable, {"portable"}, [&] {
    runtime.begin_step(DocLayout::from_lengths(Lengths{16}), shape, {}, {.device = StepOptions::device_host});
  });
}

TEST(ReferenceParity, PostKernelConsensus) {
  const DocLayout layout = DocLayout::from_lengths(Lengths{32}, {.world_size = 2});
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};
  for (bool fails : {false, true}) {
    const auto errors = on_ranks(2, [&](int rank, Communicator comm) {
      const Runtime runtime = quiet_runtime(policy("halo"));
      const Step step = runtime.begin_step(layout, shape, comm);
      RankRun run(step, shape, GlobalInputs(layout, shape, 10), rank);
      run.forward(step);
      // A rank whose kernel fails after the exchange tells the others; they learn it at their next call.
      if (fails && rank == 0)
        comm.group()->fail(Error(ErrorCode::cuda_error, "exchange completed, but the kernel failed"));
      run.backward(step);
    });
    for (const std::string& error : errors) {
      if (fails) {
        EXPECT_THAT(error, HasSubstr("exchange completed, but the kernel failed"));
      } else {
        EXPECT_EQ(error, "");
      }
    }
  }
}

TEST(ReferenceParity, Divergence) {
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};
  auto errors = on_ranks(2, [&](int rank, Communicator comm) {
    quiet_runtime(policy(rank == 0 ? "halo" : "allgather"))
        .begin_step(DocLayout::from_lengths(Lengths{32}, {.world_size = 2}), shape, comm);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("/exchange/path"));
  errors = on_ranks(2, [&](int rank, Communicator comm) {
    const Lengths ids = rank == 0 ? Lengths{1, 1, 2, 2} : Lengths{1, 2, 2, 2};
    quiet_runtime(policy("halo"))
        .begin_step(DocLayout::from_doc_ids(std::span<const std::int64_t>(ids), {.world_size = 2}), shape,
                    comm);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("layout"));
}

TEST(ReferenceParity, LogOnce) {
  // Each distinct (path, reason) is logged once, also when it first comes up after the first step.
  std::vector<std::string> lines;
  const CallShape shape{.heads_q = 1, .heads_kv = 1, .head_dim = 8, .dtype = DType::f32};
  const auto errors = on_ranks(3, [&](int rank, Communicator comm) {
    RuntimeOptions options;
    Policy::Sources sources;
    sources.json = policy("halo");
    sources.ignore_env = true;
    options.policy = Policy::load(sources);
    options.log_sink = [&, rank](PolicyValues::LogLevel, std::string_view line) {
      if (rank == 0) lines.emplace_back(line);
    };
    const Runtime runtime = Runtime::create(options);
    for (const Lengths& lengths : {Lengths{10, 10, 10}, Lengths{30}, Lengths{10, 10, 10}, Lengths{30}})
      runtime.begin_step(DocLayout::from_lengths(std::span<const std::int64_t>(lengths), {.world_size = 3}),
                         shape, comm);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  int count = 0;
  for (const std::string& line : lines) count += line.find("halo_infeasible") != std::string::npos;
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace bdcp::test
