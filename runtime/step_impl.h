// Private to step.cc and begin_step.cc: what a Step holds. Immutable after begin_step but for counters.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "attention/backend.h"
#include "base/log.h"
#include "bdcp/runtime.h"
#include "comm/exposure.h"
#include "comm/kv_exchange.h"
#include "device/tables.h"
#include "metrics.h"
#include "plan/plan.h"
#include "policy/downgrade_log.h"

namespace bdcp {

/// One call shape, ready to run.
struct PreparedShape {
  CallShape shape;
  std::shared_ptr<const attention::PreparedAttention> attention;
  std::unique_ptr<comm::KvExchange> exchange;  ///< null at world size 1
  WorkspaceSizes sizes;
  std::size_t landing = 0, gradients = 0;  ///< pieces of the workspace, 256-byte multiples
};

/// What outlives a Step only through the Runtime it came from; shared so that a Step may outlive the handle.
struct StepServices {
  std::shared_ptr<Log> log;
  std::shared_ptr<Metrics> metrics;
  std::shared_ptr<policy::DowngradeLog> downgrades;
  std::shared_ptr<jit::KernelCache> cache;
  std::function<void(const Event&)> events;  ///< may be empty
};

struct Step::Impl {
  Impl(DocLayout l, Communicator c, std::shared_ptr<const PolicyValues> p)
      : layout(std::move(l)), comm(std::move(c)), policy(std::move(p)) {}

  DocLayout layout;
  Communicator comm;
  std::shared_ptr<const PolicyValues> policy;
  StepServices services;
  std::uint64_t number = 0;  ///< per communicator
  int device = -1;
  std::shared_ptr<device::Device> device_handle;  ///< null: host
  plan::RankPlan plan;
  Decision decision;
  std::vector<PreparedShape> shapes;
  std::shared_ptr<device::Tables> tables;  ///< work lists of all shapes; null: host
  std::int64_t graph_documents = 0;        ///< room for captured calls of later layouts; 0: none
  std::optional<Recapture> recapture;
  int sm_margin = 0;                           ///< while a transfer is in flight
  bool margin_at_start = false;                ///< only until it runs
  std::shared_ptr<comm::ExposureMeter> meter;  ///< the device's; null on the host and at world 1
  std::shared_ptr<comm::ExposedTime> exposed;

  std::atomic<std::uint64_t> forward_calls{0}, backward_calls{0};
  std::atomic<bool> strided_reported{false};

  bool keep_kv() const { return policy->exchange.backward_kv == PolicyValues::BackwardKv::keep; }
};

}  // namespace bdcp
