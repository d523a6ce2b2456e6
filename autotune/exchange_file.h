// bdcp-autotune exchange: measurements become the file that exchange.measured names.
#pragma once

#include <string>
#include <vector>

#include "autotune/exchange_measure.h"

namespace bdcp::autotune {

struct ExchangeTuning {
  ExchangeOptions measure;
  std::string file;        ///< its other rows stay; its row of the same setting is replaced
  int ranks_per_node = 0;  ///< as exchange.ranks_per_node; 0: from the hosts
};

/// Measures, and the leader writes. Every process of the team calls it. Returns the lines. Throws what
/// measuring throws, Error(invalid_policy) for a file that is none, Error(io_error) if it cannot be written.
std::vector<ExchangeLine> tune_exchange(const ExchangeTuning& tuning, const Team& team);

/// `before` (text of such a file, or empty) with a row of these lines.
std::string with_row(const std::string& before, const std::string& origin,
                     const std::vector<ExchangeLine>& lines, int nodes, const std::string& date);

}  // namespace bdcp::autotune
