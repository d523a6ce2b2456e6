// DowngradeLog: what happens to the downgrades of a decision: counted, logged once each, or refused.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "base/log.h"
#include "bdcp/decision.h"
#include "bdcp/policy.h"
#include "bdcp/runtime.h"

namespace bdcp::policy {

/// Owned by a Runtime; thread safe.
class DowngradeLog {
 public:
  using EventSink = std::function<void(const Event&)>;

  /// Counts every downgrade by code, then acts by policy. warn: a downgrade not seen before is logged at
  /// warning level and handed to `events` (kind "downgrade"); two are the same when from, to, code and rank
  /// are, whatever the text says about sizes. silent: counted only. error: throws Error(downgrade_refused,
  /// scope step), or Error(backend_unavailable) for that code, after the others have been dealt with; the
  /// message names from, to, code, text and rank of every refused one. Ranks that pass equal lists and policies
  /// throw alike.
  void record(std::span<const Downgrade> downgrades, const PolicyValues& policy, const Log& log,
              const EventSink& events = {});

  /// How often each code has been recorded since the start.
  std::map<std::string, std::uint64_t> counts() const;

 private:
  using Key = std::tuple<std::string, std::string, std::string, int>;
  bool first_time(const Downgrade& downgrade);

  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;
  std::set<Key> seen_;
};

/// `halo -> a2a (halo_infeasible, rank 3): document 7 reaches ...`
std::string to_string(const Downgrade& downgrade);

}  // namespace bdcp::policy
