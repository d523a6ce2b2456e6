// The command line of bdcp-bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autotune/exchange_measure.h"
#include "bench/measure.h"
#include "bench/workload.h"

namespace bdcp::bench {

struct Request {
  enum class What { attention, exchange };
  What what = What::attention;
  autotune::ExchangeOptions exchange;
  MeasureOptions options;
  std::vector<std::string> packs;
  std::string lengths, cu_seqlens, cu_seqlens_k;
  std::int64_t padding = 0;
  int random = 0;
  std::int64_t max_tokens = 1024;
  bool json = false, list_packs = false;
  bool spawn = false;                 ///< a process per rank
  bool world_given = false;           ///< on the command line
  std::vector<std::string> children;  ///< the command line of each such process
};

/// The parsed command line, or the exit code where there is nothing to do: usage errors (2) and --help (0),
/// which are already printed.
struct ParsedArgs {
  Request request;
  std::optional<int> exit_code;
};
ParsedArgs parse_args(int argc, const char* const* argv);

/// What the request wants measured. Throws Error(invalid_argument or invalid_layout) for text that is no list
/// of numbers and packs that do not exist.
std::vector<Workload> workloads(const Request& request);

}  // namespace bdcp::bench
