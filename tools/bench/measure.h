// One workload: run, check, poison and time it, as asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/report.h"
#include "bench/session.h"
#include "bench/workload.h"

namespace bdcp::bench {

struct MeasureOptions {
  CallShape shape;
  Tensors modes;  ///< which directions get a line; backward runs forward too
  int world = 1, iters = 20, warmup = 5;
  bool check = false, time = true;
  std::optional<std::int64_t> poison;  ///< index of a document
  OracleMode oracle = OracleMode::automatic;
  std::uint64_t seed = 0;
  std::optional<std::string> policy_file;
  std::string backend, exchange;  ///< policy words; empty: as the policy says
  bool deterministic = false;
  std::string device = "auto";  ///< "auto", "host" or a CUDA ordinal
};

/// Opens the device and the runtimes once; then measures any number of workloads. Not thread safe.
class Bench {
 public:
  /// Throws Error(library_missing) where a CUDA device is asked for and there is none. `team` outlives it.
  Bench(MeasureOptions options, const Team& team);

  const MeasureOptions& options() const { return options_; }
  /// One measurement per mode, forward first; checks are the leader's. `workload` must outlive them. Throws
  /// Error(invalid_argument) for a poisoned document that the workload does not have, and whatever begin_step
  /// throws.
  std::vector<Measurement> measure(const Workload& workload, std::uint64_t seed);

 private:
  Outputs run(Session& session);
  Outputs trusted_run(const Workload& workload, const check::Problem& problem, const Inputs& f32);

  MeasureOptions options_;
  const Team& team_;
  const Team alone_{1};
  Place place_;
  std::string device_name_;
  std::optional<Runtime> runtime_, trusted_;
};

}  // namespace bdcp::bench
