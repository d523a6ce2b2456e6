// What the ranks of a step tell each other, and the path facts that come out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bdcp/doc_layout.h"
#include "bdcp/error.h"
#include "bdcp/policy.h"
#include "bdcp/types.h"
#include "plan/exchange_path.h"

namespace bdcp {

/// One rank's contribution to the consensus that may differ between ranks.
struct RankReport {
  plan::RankFacts facts;
  std::string transport;       ///< what would move its K/V; empty at world 1
  std::string measured;        ///< the setting of the measured row it uses; empty: none
  std::string pending_policy;  ///< digest of a reloaded policy's group fields; empty: none pending
  std::optional<std::pair<ErrorCode, std::string>> error;  ///< why this rank cannot take part in the step
};

std::string encode(const RankReport& report);
/// Throws Error(divergence) for bytes that no rank of this version writes.
RankReport decode(const std::string& bytes, int rank);

/// The fields that must be equal on all ranks.
std::vector<std::pair<std::string, std::string>> must_match_fields(
    const DocLayout& layout, std::span<const CallShape> shapes,
    const std::vector<std::pair<std::string, std::string>>& policy_fields, const std::string& templates_hash);

/// Throws one error, alike on every rank, if any rank reported one.
void raise_reported_errors(std::span<const RankReport> reports);
/// Throws Error(divergence) naming ranks and what they would use: NCCL versions, host and device memory,
/// measured rows of different devices.
void raise_setting_difference(std::span<const RankReport> reports);

}  // namespace bdcp
