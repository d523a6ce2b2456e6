// Policy: how a Runtime chooses paths, backends and cache behaviour. See configs/README.md for the JSON form.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bdcp/types.h"

namespace bdcp {

namespace policy {
class MeasuredExchange;
}

/// Resolved values for one group; field names and defaults are those of the JSON document.
struct PolicyValues {
  struct Attention {
    BackendKind backend = BackendKind::automatic;
    bool deterministic = false, batch_invariant = false;
    std::optional<int> sm_margin;  ///< null: as many as the transport takes, see configs/README.md
  } attention;
  enum class Transport { automatic, nccl, copy_engine };
  enum class CrossNode { allgather, needed_only };
  enum class BackwardKv { refetch, keep };
  enum class GradPayload { fp32, input };
  enum class Balance { none };
  struct Exchange {
    ExchangePath path = ExchangePath::automatic;
    Transport transport = Transport::automatic;
    CrossNode cross_node = CrossNode::allgather;
    BackwardKv backward_kv = BackwardKv::refetch;
    GradPayload grad_payload = GradPayload::fp32;
    int landing_slots = 2, landing_mib = 512;
    Balance balance = Balance::none;
    std::optional<int> ranks_per_node;    ///< null: from the members' hosts
    std::optional<std::string> measured;  ///< file written by `bdcp-autotune exchange`; compared by content
  } exchange;
  enum class OnDowngrade { warn, error, silent };
  /// code -> action; "default" always present
  std::map<std::string, OnDowngrade> on_downgrade{{"backend_unavailable", OnDowngrade::error},
                                                  {"default", OnDowngrade::warn}};
  struct Agreement {
    double timeout_s = 600, heartbeat_s = 2;
  } agreement;
  struct Failure {
    double exchange_timeout_s = 120;
  } failure;
  enum class OnMiss { jit, fallback, error };
  struct Kernels {
    OnMiss on_miss = OnMiss::jit;
    std::optional<std::string> cache_dir;  ///< null: BDCP_CACHE_DIR, else the user's cache folder
    std::vector<std::string> seed_dirs, tuned;
    int jobs = 0;  ///< 0: number of cores
  } kernels;
  enum class LogLevel { trace, debug, info, warn, error, off };
  struct Log {
    LogLevel level = LogLevel::info;
  } log;

  OnDowngrade action_for(std::string_view code) const;
};

/// Facts a `groups` entry may match on; equal on every rank by construction.
struct GroupFacts {
  std::string name = "cp";
  int world_size = 1;
  int nodes = 1;
};

/// One resolved field: JSON pointer, canonical JSON value, where it came from, and whether ranks must agree on
/// it.
struct PolicyField {
  std::string pointer, value, origin;
  bool group = false;
  std::string compared;  ///< what ranks compare: the value, or for a file compared by content, its hash
};

/// A validated policy document with the precedence built-in < file < its matching groups < code < environment.
/// Immutable value; copying is cheap.
class Policy {
 public:
  struct Sources {
    std::optional<std::string> file;                        ///< path; BDCP_POLICY when unset
    std::optional<std::string> json;                        ///< text instead of a file
    std::vector<std::pair<std::string, std::string>> code;  ///< "exchange.path" -> JSON or bare text
    bool ignore_env = false;
    std::optional<std::vector<std::pair<std::string, std::string>>> environment;  ///< instead of the process's
  };
  /// Built-in values alone.
  Policy();
  /// Throws Error(invalid_policy) with JSON pointer, value, and what is allowed.
  static Policy load(const Sources& sources);

  PolicyValues resolve(const GroupFacts& facts = {}) const;
  /// What the file of exchange.measured says, as it was when the policy was loaded; null: there is none.
  std::shared_ptr<const policy::MeasuredExchange> measured(const GroupFacts& facts = {}) const;
  /// Every combination of values that the named fields ("exchange.path") can have in some group, whichever
  /// entries of `groups` match it; other fields as without any. Throws Error(invalid_argument) for an unknown
  /// name.
  std::vector<PolicyValues> variants(std::span<const std::string_view> names) const;
  /// Every field with value and origin, in schema order.
  std::vector<PolicyField> fields(const GroupFacts& facts = {}) const;
  /// fields() as a JSON document {pointer: {value, origin}}.
  std::string dump(const GroupFacts& facts = {}) const;
  /// The schema that validates policy files.
  static std::string_view schema_json();

  struct State;  ///< opaque

 private:
  explicit Policy(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// Names of paths and backends with the usual synonyms, normalised (strip, lower, '-' -> '_'; empty, "auto",
/// "default" and "none given" -> automatic). nullopt: unknown.
std::optional<ExchangePath> parse_exchange_path(std::string_view text);
std::optional<BackendKind> parse_backend(std::string_view text);

}  // namespace bdcp
