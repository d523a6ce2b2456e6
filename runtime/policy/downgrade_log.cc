#include "policy/downgrade_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "bdcp/error.h"

namespace bdcp::policy {

void DowngradeLog::record(std::span<const Downgrade> downgrades, const PolicyValues& policy, const Log& log,
                          const EventSink& events) {
  {
    const std::lock_guard lock(mutex_);
    for (const Downgrade& downgrade : downgrades) ++counts_[downgrade.code];
  }
  const Downgrade* refused = nullptr;
  std::vector<std::string> lines;
  for (const Downgrade& downgrade : downgrades) {
    switch (policy.action_for(downgrade.code)) {
      case PolicyValues::OnDowngrade::silent:
        break;
      case PolicyValues::OnDowngrade::warn:
        // Outside of the lock: sinks are the host's code.
        if (first_time(downgrade)) {
          log.warn(fmt::format("downgrade: {}", to_string(downgrade)));
          if (events) events({"downgrade", to_string(downgrade)});
        }
        break;
      case PolicyValues::OnDowngrade::error:
        if (!refused) refused = &downgrade;
        lines.push_back(to_string(downgrade));
        break;
    }
  }
  if (!refused) return;
  const bool backend = refused->code == "backend_unavailable";
  throw Error(backend ? ErrorCode::backend_unavailable : ErrorCode::downgrade_refused,
              fmt::format("{}; the policy's on_downgrade.{} is \"error\"", fmt::join(lines, "; "),
                          policy.on_downgrade.contains(refused->code) ? refused->code : "default"),
              ErrorScope::step)
      .with_origin(refused->rank);
}

bool DowngradeLog::first_time(const Downgrade& downgrade) {
  const std::lock_guard lock(mutex_);
  return seen_.emplace(downgrade.from, downgrade.to, downgrade.code, downgrade.rank).second;
}

std::map<std::string, std::uint64_t> DowngradeLog::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::string to_string(const Downgrade& downgrade) {
  const std::string rank = downgrade.rank < 0 ? "whole group" : fmt::format("rank {}", downgrade.rank);
  return fmt::format("{} -> {} ({}, {}): {}", downgrade.from, downgrade.to, downgrade.code, rank,
                     downgrade.text);
}

}  // namespace bdcp::policy
