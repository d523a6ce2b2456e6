// Everything bdcp-plan says, as values.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bdcp/decision.h"
#include "bdcp/doc_layout.h"
#include "options.h"
#include "plan/plan.h"

namespace bdcp::tools {

struct Explanation {
  explicit Explanation(DocLayout documents) : layout(std::move(documents)) {}

  DocLayout layout;
  plan::GlobalPlan global;
  std::vector<plan::RankPlan> ranks;
  plan::PathBytes bytes;
  Decision decision;
  std::vector<std::string> actions;      ///< what the policy does about each downgrade: warn, error, silent
  std::vector<std::string> assumptions;  ///< what a plan without the machines has to take for granted
  double max_over_mean = 1.0;            ///< of the visible pairs per rank; 1 where there are none
};

/// Throws Error(backend_unavailable) if no backend can run the shape, and what the layout and policy throw.
Explanation explain(const PlanOptions& options);

std::string to_text(const Explanation& explanation);
std::string to_json_text(const Explanation& explanation);

}  // namespace bdcp::tools
