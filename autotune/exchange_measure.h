// What moving K/V takes, without attention: bdcp-bench exchange shows it, bdcp-autotune exchange keeps it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "autotune/team.h"

namespace bdcp::autotune {

struct ExchangeOptions {
  std::vector<std::string> paths{"allgather", "halo", "a2a"};
  /// Bytes that each rank gives: gathered by all, to the next rank, or to every other one.
  std::vector<std::int64_t> sizes;
  int iters = 20;
  std::string device = "auto";
};

struct ExchangeLine {
  std::string path, transport, device;
  std::int64_t bytes = 0;     ///< a rank gives
  std::int64_t received = 0;  ///< by the rank that receives most
  int world = 1, iters = 0;
  double us = 0;          ///< one transfer among many, the slowest rank's
  double latency_us = 0;  ///< one transfer alone, from the call until its stream has passed it
  double gbps() const { return us > 0 ? static_cast<double>(received) / us / 1e3 : 0; }
};
/// 64 KiB to 256 MiB in steps of 4.
std::vector<std::int64_t> default_sizes();

std::string to_json_line(const ExchangeLine& line);
std::string to_text(const ExchangeLine& line);

/// `report` gets each line, on every process.
void measure_exchange(const ExchangeOptions& options, const Team& team,
                      const std::function<void(const ExchangeLine&)>& report);

}  // namespace bdcp::autotune
