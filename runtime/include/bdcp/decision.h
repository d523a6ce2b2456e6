// What a step decided: path, backend, and every downgrade with its reason.
#pragma once

#include <string>
#include <vector>

#include "bdcp/types.h"

namespace bdcp {

/// One step down from what was asked for. Codes are stable identifiers; text is for people.
struct Downgrade {
  std::string from, to;  ///< path, backend or feature names, e.g. "halo" -> "a2a"
  std::string
      code;  ///< e.g. "halo_infeasible", "cross_node", "backend_skipped", "backend_unavailable", "kv_strided"
  std::string text;
  int rank = -1;  ///< rank that caused it; -1: a fact of the whole group
  friend bool operator==(const Downgrade&, const Downgrade&) = default;
};

struct Decision {
  ExchangePath requested_path = ExchangePath::automatic;
  ExchangePath path = ExchangePath::local;
  BackendKind requested_backend = BackendKind::automatic;
  BackendKind backend = BackendKind::host;
  std::string reason;  ///< why `path` was taken, one sentence
  std::vector<Downgrade> downgrades;
};

}  // namespace bdcp
