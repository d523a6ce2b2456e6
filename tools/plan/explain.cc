#include "explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "attention/backend.h"
#include "base/check.h"
#include "bdcp/policy.h"
#include "layout_input.h"
#include "plan/exchange_path.h"

namespace bdcp::tools {
namespace {

Policy load_policy(const PlanOptions& options) {
  Policy::Sources sources;
  sources.file = options.policy_file;
  if (options.exchange) sources.code.emplace_back("exchange.path", *options.exchange);
  if (options.backend) sources.code.emplace_back("attention.backend", *options.backend);
  if (options.ranks_per_node) {
    sources.code.emplace_back("exchange.ranks_per_node", std::to_string(*options.ranks_per_node));
  }
  return Policy::load(sources);
}

/// Facts of a device nobody has asked: only what follows from the architecture.
device::DeviceFacts assumed_device(const std::string& arch) {
  const int number = std::atoi(arch.c_str() + 3);
  device::DeviceFacts facts;
  facts.ordinal = 0;
  facts.name = "assumed " + arch;
  facts.arch = arch;
  facts.cc_major = number / 10;
  facts.cc_minor = number % 10;
  facts.smem_per_block = number >= 90 ? 227 << 10 : number == 80 ? 163 << 10 : 99 << 10;
  return facts;
}

plan::RankFacts judge_backends(const PlanOptions& options, const PolicyValues& policy) {
  const device::DeviceFacts device =
      options.arch == "host" ? device::DeviceFacts{} : assumed_device(options.arch);
  const attention::Target target{options.arch == "host" ? nullptr : &device};
  const attention::Options how{.deterministic = policy.attention.deterministic,
                               .batch_invariant = policy.attention.batch_invariant,
                               .payload_f32 = policy.exchange.grad_payload == PolicyValues::GradPayload::fp32};
  const auto backends = attention::make_backends();
  plan::RankFacts facts;
  for (std::size_t i = 0; i < plan::kBackendOrder.size(); ++i) {
    const BackendKind kind = plan::kBackendOrder[i];
    const auto found =
        std::find_if(backends.begin(), backends.end(), [&](const auto& one) { return one->kind() == kind; });
    facts.backends[i] =
        found != backends.end()
            ? (*found)->can(options.shape, target, how)
            : plan::Verdict{false, "not_built",
                            fmt::format("backend {} is not part of this build", to_string(kind))};
  }
  return facts;
}

void check_options(const PlanOptions& options) {
  require(options.hosts.empty() || options.hosts.size() == static_cast<std::size_t>(options.world),
          ErrorCode::invalid_argument, [&] {
            return fmt::format("--hosts names {} hosts; allowed: {}, one per rank", options.hosts.size(),
                               options.world);
          });
  const CallShape& shape = options.shape;
  require(shape.heads_q % shape.heads_kv == 0, ErrorCode::invalid_argument, [&] {
    return fmt::format("--heads-q is {}; allowed: multiples of --heads-kv = {}", shape.heads_q, shape.heads_kv);
  });
  require(shape.dropout_p < 1, ErrorCode::invalid_argument,
          [&] { return fmt::format("--dropout is {}; allowed: 0 to below 1", shape.dropout_p); });
}

const char* action_name(PolicyValues::OnDowngrade action) {
  switch (action) {
    case PolicyValues::OnDowngrade::warn:
      return "warn";
    case PolicyValues::OnDowngrade::error:
      return "error";
    case PolicyValues::OnDowngrade::silent:
      return "silent";
  }
  return "warn";
}

void decide(const PlanOptions& options, Explanation& out) {
  const Policy policy = load_policy(options);
  plan::PathFacts facts;
  facts.ranks.resize(options.world);
  for (std::size_t rank = 0; rank < options.hosts.size(); ++rank) facts.ranks[rank].host = options.hosts[rank];
  facts.ranks_per_node = options.ranks_per_node;
  const PolicyValues values = policy.resolve({.world_size = options.world, .nodes = plan::count_nodes(facts)});

  const plan::RankFacts judged = judge_backends(options, values);
  for (plan::RankFacts& rank : facts.ranks) rank.backends = judged.backends;
  facts.requested = values.exchange.path;
  facts.backend = values.attention.backend;
  facts.needed_only_across_nodes = values.exchange.cross_node == PolicyValues::CrossNode::needed_only;
  facts.ranks_per_node = values.exchange.ranks_per_node;
  facts.dropout_p = options.shape.dropout_p;
  plan::add_plan_facts(out.global, facts);
  out.decision = plan::select(facts);
  for (const Downgrade& downgrade : out.decision.downgrades) {
    out.actions.emplace_back(action_name(values.action_for(downgrade.code)));
  }

  out.assumptions.push_back(
      options.arch == "host" ? "tensors are in host memory on every rank"
                             : fmt::format("every rank has an {} device; no device was asked", options.arch));
  if (options.world > 1 && options.hosts.empty() && !facts.ranks_per_node) {
    out.assumptions.push_back("all ranks are on one node");
  }
  if (facts.requested == ExchangePath::automatic && values.exchange.measured) {
    out.assumptions.push_back("measured costs (" + *values.exchange.measured +
                              ") hold for a device and a transport, and none was asked");
  }
}

double max_over_mean(const std::vector<std::int64_t>& area) {
  const auto sum = std::accumulate(area.begin(), area.end(), 0.0);
  const auto largest = static_cast<double>(*std::max_element(area.begin(), area.end()));
  return sum == 0 ? 1.0 : largest * static_cast<double>(area.size()) / sum;
}

}  // namespace

Explanation explain(const PlanOptions& options) {
  check_options(options);
  Explanation out(read_layout(options));
  out.global = plan::make_global_plan(out.layout);
  out.ranks.reserve(static_cast<std::size_t>(options.world));
  for (int rank = 0; rank < options.world; ++rank) {
    out.ranks.push_back(plan::make_rank_plan(out.layout, out.global, rank));
    const std::string wrong = plan::plan_guard(out.ranks.back());
    require(wrong.empty(), ErrorCode::internal,
            [&] { return fmt::format("plan of rank {}: {}", rank, wrong); });
  }
  const CallShape& shape = options.shape;
  const std::int64_t per_token = std::int64_t{shape.heads_kv} * (shape.head_dim + shape.dim_v()) *
                                 static_cast<std::int64_t>(size_of(shape.dtype));
  out.bytes = plan::path_bytes(out.global, per_token);
  out.max_over_mean = max_over_mean(out.global.area);
  decide(options, out);
  return out;
}

}  // namespace bdcp::tools
