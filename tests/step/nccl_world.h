// Ranks of one process with a GPU each, over NCCL.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/rank_threads.h"
#include "device/nccl_library.h"
#include "step/device_rank.h"
#include "support/broadcast_ranks.h"

namespace bdcp::test {

/// Skips where there are no two GPUs with NCCL and a compiler for the kernels.
class TwoGpus : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = device::Driver::open(Env::from_process(), &why);
    if (!driver_) GTEST_SKIP() << why;
    if (driver_->device_count() < 2) GTEST_SKIP() << "this process sees one GPU; two are needed";
    nccl_ = device::NcclLibrary::open(Env::from_process(), &why);
    if (!nccl_) GTEST_SKIP() << why;
  }
  std::shared_ptr<device::Device> device(int rank) const { return driver_->device(rank); }

  /// One runtime per test process and policy: kernels are compiled once.
  static const Runtime& runtime(const std::string& policy) {
    static std::map<std::string, Runtime> all;
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    auto found = all.find(policy);
    if (found == all.end()) found = all.emplace(policy, quiet_runtime(policy)).first;
    return found->second;
  }
  static std::string policy(const std::string& backend, const std::string& path, const std::string& more = "") {
    return "{\"attention\": {\"backend\": \"" + backend + "\"}, \"exchange\": {\"path\": \"" + path + "\"}" +
           more + "}";
  }

  /// Forward and backward of every rank, put together.
  GlobalResults run(const std::vector<Communicator>& ranks, const Runtime& runtime, const DocLayout& layout,
                    const CallShape& shape, const GlobalInputs& inputs,
                    HostTensor::Order order = HostTensor::Order::packed);

  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<const device::NcclLibrary> nccl_;
};

inline void put_shard(const DeviceRank::Results& part, int rank, GlobalResults& all) {
  const auto rows = [&](const HostTensor& from, HostTensor& to) {
    for (std::int64_t t = 0; t < from.tokens(); ++t)
      for (std::int64_t h = 0; h < from.heads(); ++h)
        for (std::int64_t d = 0; d < from.dim(); ++d) to.set(rank * from.tokens() + t, h, d, from.at(t, h, d));
  };
  rows(part.out, all.out);
  rows(part.dq, all.dq);
  rows(part.dk, all.dk);
  rows(part.dv, all.dv);
  for (std::int64_t h = 0; h < part.lse.heads; ++h)
    std::copy_n(part.lse.data.data() + h * part.lse.tokens, part.lse.tokens,
                all.lse.data.data() + h * all.lse.tokens + rank * part.lse.tokens);
}

inline GlobalResults TwoGpus::run(const std::vector<Communicator>& ranks, const Runtime& with,
                                  const DocLayout& layout, const CallShape& s, const GlobalInputs& inputs,
                                  HostTensor::Order order) {
  const std::int64_t rows = layout.padded_tokens();
  GlobalResults all{HostTensor(s.dtype, rows, s.heads_q, s.dim_v()),
                    HostTensor(s.dtype, rows, s.heads_q, s.head_dim),
                    HostTensor(s.dtype, rows, s.heads_kv, s.head_dim),
                    HostTensor(s.dtype, rows, s.heads_kv, s.dim_v()),
                    HostLse(s.heads_q, rows),
                    std::vector<Decision>(ranks.size())};
  const Outcomes outcomes = run_ranks(ranks, [&](Communicator& comm) {
    const Step step = with.begin_step(layout, s, comm, {.device = comm.rank()});
    DeviceRank own(step, s, inputs, comm.rank(), device(comm.rank()), order);
    own.forward(step);
    own.backward(step);
    own.finish();
    comm.check();
    put_shard(own.download(), comm.rank(), all);  // other rows of each tensor
    all.decisions[static_cast<std::size_t>(comm.rank())] = step.decision();
  });
  EXPECT_TRUE(all_well(outcomes)) << describe(outcomes);
  return all;
}

}  // namespace bdcp::test
