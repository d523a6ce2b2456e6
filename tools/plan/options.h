// The command line of bdcp-plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bdcp/types.h"

namespace bdcp::tools {

struct PlanOptions {
  // Exactly one describes the documents; cu_seqlens_k only goes with cu_seqlens.
  std::optional<std::string> lengths, doc_ids, cu_seqlens, cu_seqlens_k, layout_file, pack;
  std::int64_t padding = 0;
  int world = 1;
  std::optional<std::string> exchange, backend, policy_file;  ///< over the policy's values
  std::optional<int> ranks_per_node;
  std::vector<std::string> hosts;  ///< by rank; empty: all on one
  CallShape shape;
  std::string arch = "sm_90a";  ///< device the backends are judged for; "host": none
  bool json = false;
};

/// The parsed command line, or the exit code where there is nothing to do: usage errors (2) and --help (0),
/// which are already printed.
struct ParsedPlanOptions {
  PlanOptions options;
  std::optional<int> exit_code;
};
ParsedPlanOptions parse_plan_options(int argc, const char* const* argv);

}  // namespace bdcp::tools
