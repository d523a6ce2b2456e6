// The one consensus round of a step: named fields that must be equal on every rank, and facts each rank
// contributes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/call_ledger.h"
#include "comm/group.h"

namespace bdcp::comm {

struct ConsensusInput {
  std::uint64_t step = 0;
  std::vector<std::pair<std::string, std::string>> must_match;  ///< field name (unique), canonical value
  std::string facts;                                            ///< opaque; handed to every rank
  /// Compared as field "calls"; a difference names the first call that differs.
  std::optional<LedgerSnapshot> calls;
};

/// Facts by rank. Throws Error(divergence, scope step) on every rank alike, naming the differing fields, their
/// values and the ranks that hold them; Error(timeout) naming the ranks that did not come; Error(peer_failed).
/// Frame: see consensus_frame.h; anything malformed is an Error(divergence) naming the rank it came from.
std::vector<std::string> agree(Group& group, const ConsensusInput& input, Deadline deadline);

}  // namespace bdcp::comm
