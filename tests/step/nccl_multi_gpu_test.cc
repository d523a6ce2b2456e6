// Steps over NCCL between two GPUs, ranks as threads: results, repeatability, several steps and communicators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "check/oracle.h"
#include "step/nccl_world.h"
#include "support/numbers.h"
#include "support/reference_cases.h"

namespace bdcp::test {
namespace {

using Lengths = std::vector<std::int64_t>;
constexpr const char* kPaths[] = {"allgather", "halo", "a2a"};

DocLayout layout_of(const Lengths& lengths, std::int64_t padding = 0, int world = 2) {
  return DocLayout::from_lengths(lengths, {.world_size = world, .padding_tokens = padding});
}
CallShape shape_of(DType dtype, int heads_q = 4, int heads_kv = 2, int dim = 64) {
  return {.heads_q = heads_q, .heads_kv = heads_kv, .head_dim = dim, .dtype = dtype};
}

class NcclSteps : public TwoGpus {
 protected:
  void expect_numbers(const GlobalResults& got, const check::Results& want, DType dtype) {
    EXPECT_TRUE(numbers_pass(check::Quantity::out, dtype, got.out.values(), want.out));
    EXPECT_TRUE(numbers_pass(check::Quantity::lse, dtype, got.lse.values(), want.lse));
    EXPECT_TRUE(numbers_pass(check::Quantity::gradient, dtype, got.dq.values(), want.dq));
    EXPECT_TRUE(numbers_pass(check::Quantity::gradient, dtype, got.dk.values(), want.dk));
    EXPECT_TRUE(numbers_pass(check::Quantity::gradient, dtype, got.dv.values(), want.dv));
  }
  check::Results oracle(const CallShape& shape, const DocLayout& layout, const GlobalInputs& inputs) {
    return check::oracle(check::Problem::from(shape, layout),
                         {inputs.q.view(), inputs.k.view(), inputs.v.view(), inputs.dout.view()});
  }
  std::vector<Communicator> ranks_;
  void SetUp() override {
    TwoGpus::SetUp();
    if (!IsSkipped()) ranks_ = broadcast_ranks(2);
  }
};

TEST_F(NcclSteps, EveryPathGivesTheNumbersOfOneGpu) {
  const std::pair<Lengths, std::int64_t> layouts[] = {
      {{100, 80, 44}, 32}, {{512}, 0}, {{120}, 136}, {{200, 3, 1, 300, 9}, 7}, {{128, 128, 128, 128}, 0}};
  for (const auto& [lengths, padding] : layouts)
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const CallShape shape = shape_of(dtype);
      const DocLayout layout = layout_of(lengths, padding);
      const GlobalInputs inputs(layout, shape, 5);
      const check::Results want = oracle(shape, layout, inputs);
      const std::string backend = dtype == DType::f32 ? "reference" : "auto";
      for (const char* path : kPaths) {
        SCOPED_TRACE(testing::Message()
                     << testing::PrintToString(lengths) << " " << to_string(dtype) << " " << path);
        const GlobalResults got = run(ranks_, runtime(policy(backend, path)), layout, shape, inputs);
        EXPECT_EQ(to_string(got.decisions[0].path), path);
        expect_numbers(got, want, dtype);
      }
    }
}

TEST_F(NcclSteps, RowsWithGapsAreTheSameBits) {
  const CallShape shape = shape_of(DType::bf16);
  const DocLayout layout = layout_of({100, 80, 44}, 32);
  const GlobalInputs inputs(layout, shape, 6);
  for (const char* path : kPaths) {
    const Runtime& with = runtime(policy("reference", path));
    const GlobalResults packed = run(ranks_, with, layout, shape, inputs);
    for (const auto order : {HostTensor::Order::heads_first, HostTensor::Order::padded})
      EXPECT_TRUE(packed.same_bits(run(ranks_, with, layout, shape, inputs, order))) << path;
  }
}

TEST_F(NcclSteps, KeptKeysAndInputDtypePartials) {
  const CallShape shape = shape_of(DType::bf16);
  const DocLayout layout = layout_of({100, 80, 44}, 32);
  const GlobalInputs inputs(layout, shape, 7);
  const check::Results want = oracle(shape, layout, inputs);
  for (const char* more : {"\"backward_kv\": \"keep\"", "\"grad_payload\": \"input\""}) {
    const Runtime& with =
        runtime("{\"attention\": {\"backend\": \"auto\"}, \"exchange\": {\"path\": \"a2a\", " +
                std::string(more) + "}}");
    expect_numbers(run(ranks_, with, layout, shape, inputs), want, DType::bf16);
  }
}

TEST_F(NcclSteps, KeyGradientsAreTheSameBitsFiftyTimes) {
  const CallShape shape = shape_of(DType::bf16, 8, 2, 128);
  const DocLayout layout = layout_of({700, 900, 400}, 48);
  const GlobalInputs inputs(layout, shape, 8);
  for (const char* path : kPaths) {
    std::vector<DeviceRank::Results> first(2);
    const Outcomes outcomes = run_ranks(ranks_, [&](Communicator& comm) {
      const Step step = runtime(policy("auto", path)).begin_step(layout, shape, comm, {.device = comm.rank()});
      DeviceRank own(step, shape, inputs, comm.rank(), device(comm.rank()));
      own.forward(step);
      for (int repeat = 0; repeat < 50; ++repeat) {
        own.backward(step);
        own.finish();
        DeviceRank::Results got = own.download();
        DeviceRank::Results& want = first[static_cast<std::size_t>(comm.rank())];
        if (repeat == 0) want = got;
        EXPECT_TRUE(got.dk.same_bits(want.dk) && got.dv.same_bits(want.dv)) << path << ", run " << repeat;
      }
    });
    EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  }
}

/// The metric of the reference's two-rank cases: max|got - ref| / max(max|ref|, 1e-3).
double relative(const std::vector<double>& got, const std::vector<double>& want, std::size_t count) {
  double worst = 0, largest = 1e-3;
  for (std::size_t i = 0; i < count; ++i) {
    worst = std::isnan(got[i]) ? INFINITY : std::max(worst, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

TEST_F(NcclSteps, TwoRankReferenceCases) {
  const nlohmann::json& two = reference_cases()["two_rank"];
  for (const nlohmann::json& one : two["matrix"]) {
    SCOPED_TRACE(one["id"]);
    nlohmann::json scenario;
    for (const nlohmann::json& candidate : two["scenarios"])
      if (candidate["name"] == one["scenario"]) scenario = candidate;
    const DocLayout layout = layout_of(scenario["doc_lens"].get<Lengths>(), scenario["pad"]);
    const CallShape shape =
        shape_of(*parse_dtype(one["dtype"].get<std::string>()), two["Hq"], two["Hkv"], two["D"]);
    const GlobalInputs inputs(layout, shape, two["seeds"]["x"]);
    const check::Results want = oracle(shape, layout, inputs);
    const std::string backend = one["backend"] == "dense" ? "reference" : "auto";
    const GlobalResults got = run(ranks_, runtime(policy(backend, one["kv_exchange"])), layout, shape, inputs);
    EXPECT_EQ(to_string(got.decisions[0].path), one["expect_path"].get<std::string>());
    const double out = one["tol_out"], grad = one["tol_grad"];
    const auto real_q = static_cast<std::size_t>(layout.real_tokens() * shape.heads_q * shape.head_dim);
    const auto real_kv = static_cast<std::size_t>(layout.real_tokens() * shape.heads_kv * shape.head_dim);
    EXPECT_LT(relative(got.out.values(), want.out, real_q), out);
    EXPECT_LT(relative(got.dq.values(), want.dq, real_q), grad);
    EXPECT_LT(relative(got.dk.values(), want.dk, real_kv), grad);
    EXPECT_LT(relative(got.dv.values(), want.dv, real_kv), grad);
  }
}

TEST_F(NcclSteps, FourLiveStepsInPipelineOrder) {
  const CallShape shape = shape_of(DType::bf16);
  const Lengths packs[] = {{512}, {1, 511}, {256, 256}, {200, 112, 200}};
  const Runtime& with = runtime(policy("reference", "a2a"));
  std::vector<GlobalResults> want;
  for (const Lengths& lengths : packs)
    want.push_back(run(ranks_, with, layout_of(lengths), shape, GlobalInputs(layout_of(lengths), shape, 9)));
  const Outcomes outcomes = run_ranks(ranks_, [&](Communicator& comm) {
    std::vector<std::optional<Step>> steps(4);
    std::vector<std::unique_ptr<DeviceRank>> own(4);
    const auto forward = [&](std::size_t i) {
      const DocLayout layout = layout_of(packs[i]);
      steps[i] = with.begin_step(layout, shape, comm, {.device = comm.rank()});
      own[i] = std::make_unique<DeviceRank>(*steps[i], shape, GlobalInputs(layout, shape, 9), comm.rank(),
                                            device(comm.rank()));
      own[i]->forward(*steps[i]);
    };
    const auto backward = [&](std::size_t i) {
      own[i]->backward(*steps[i]);
      own[i]->finish();
      const DeviceRank::Results got = own[i]->download();
      GlobalResults whole = want[i];
      put_shard(got, comm.rank(), whole);
      EXPECT_TRUE(whole.same_bits(want[i])) << "step " << i << ", rank " << comm.rank();
      steps[i].reset();
    };
    // 1F1B: warm-up, steady state, cool-down.
    forward(0), forward(1), forward(2);
    backward(0), forward(3), backward(1), backward(2), backward(3);
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_F(NcclSteps, ASecondBusyCommunicatorBeside) {
  const std::vector<Communicator> others = broadcast_ranks(2, "dp");
  const CallShape shape = shape_of(DType::bf16);
  const DocLayout layout = layout_of({300, 212});
  const GlobalInputs inputs(layout, shape, 10);
  const Runtime& with = runtime(policy("reference", "a2a"));
  const GlobalResults want = run(ranks_, with, layout, shape, inputs);
  static constexpr std::int64_t kBytes = 64 << 20;
  const Outcomes outcomes = run_ranks(ranks_, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto own_device = device(comm.rank());
    comm::Group& other = *others[rank].group();
    ASSERT_EQ(other.why_not(own_device.get()), "");
    other.prepare(own_device, comm::deadline_in(60));
    const device::OwnedStream stream = own_device->create_stream();
    const device::Buffer mine = own_device->allocate(kBytes), all = own_device->allocate(2 * kBytes);
    own_device->fill_async(mine.get(), static_cast<unsigned char>(rank + 1), kBytes, stream.get());
    const auto rows = [](void* data, std::int64_t count) {
      return comm::StridedRows{static_cast<std::byte*>(data), count, 1, kBytes, kBytes, kBytes};
    };
    const comm::GatherOp op{rows(mine.get(), 1), rows(all.get(), 2)};
    const Step step = with.begin_step(layout, shape, comm, {.device = comm.rank()});
    DeviceRank run(step, shape, inputs, comm.rank(), own_device);
    for (int layer = 0; layer < 20; ++layer) {
      other.all_gather({&op, 1}, {Stream::cuda(stream.get(), comm.rank()), own_device.get()}, {});
      run.forward(step);
      other.all_gather({&op, 1}, {Stream::cuda(stream.get(), comm.rank()), own_device.get()}, {});
      run.backward(step);
    }
    run.finish();
    own_device->synchronize(stream.get());
    unsigned char ends[2] = {};
    own_device->download(&ends[0], all.get(), 1);
    own_device->download(&ends[1], static_cast<std::byte*>(all.get()) + 2 * kBytes - 1, 1);
    EXPECT_EQ(ends[0], 1);
    EXPECT_EQ(ends[1], 2);
    GlobalResults whole = want;
    put_shard(run.download(), comm.rank(), whole);
    EXPECT_TRUE(whole.same_bits(want));
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
}

TEST_F(NcclSteps, TheCallersCommunicatorIsLeftAlone) {
  device::nccl::UniqueId id{};
  ASSERT_EQ(nccl_->ncclGetUniqueId(&id), device::nccl::success);
  std::vector<device::nccl::Comm> theirs(2);
  std::vector<std::thread> threads;
  std::vector<Communicator> ranks(2);
  std::vector<std::string> errors(2);
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      device(rank)->in_context([&] {
        device::nccl::Config config;
        nccl_->check(nccl_->ncclCommInitRankConfig(&theirs[i], 2, id, rank, &config), "init");
        try {
          ProcessOptions options;
          options.host_interface = "127.0.0.1";
          ranks[i] = Communicator::from_nccl(theirs[i], options);
        } catch (const Error& error) {
          errors[i] = error.what();
        }
      });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[0] + errors[1], "");
  ASSERT_EQ(ranks[1].size(), 2);
  const CallShape shape = shape_of(DType::bf16);
  const DocLayout layout = layout_of({300, 212});
  const GlobalInputs inputs(layout, shape, 11);
  const Runtime& with = runtime(policy("reference", "a2a"));
  EXPECT_TRUE(run(ranks, with, layout, shape, inputs).same_bits(run(ranks_, with, layout, shape, inputs)));
  ranks[0].abort("a drill");
  EXPECT_THROW(ranks[0].check(), Error);
  ranks.clear();
  for (const auto comm : theirs) {
    device::nccl::Result result = device::nccl::internal_error;
    EXPECT_EQ(nccl_->ncclCommGetAsyncError(comm, &result), device::nccl::success);
    EXPECT_EQ(result, device::nccl::success);
  }
  std::vector<std::thread> ends;
  for (int rank = 0; rank < 2; ++rank)
    ends.emplace_back([&, rank] {
      device(rank)->in_context([&] { (void)nccl_->ncclCommDestroy(theirs[static_cast<std::size_t>(rank)]); });
    });
  for (std::thread& thread : ends) thread.join();
}

TEST_F(NcclSteps, TwoRanksOnOneDeviceAreRefusedByName) {
  const CallShape shape = shape_of(DType::bf16);
  const DocLayout layout = layout_of({300, 212});
  const Outcomes outcomes = run_ranks(ranks_, [&](Communicator& comm) {
    (void)runtime(policy("reference", "a2a")).begin_step(layout, shape, comm, {.device = 0});
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_THAT(outcome->message(), testing::HasSubstr("each rank needs a device of its own"));
  }
}

}  // namespace
}  // namespace bdcp::test
