// Made-up files of `bdcp-autotune exchange`.
#pragma once

#include <string>

namespace bdcp::test {

/// One row; each path takes the same time at every size.
struct MadeUpRow {
  int world = 2, nodes = 1;
  std::string transport = "host copies in one process", device = "host";
  double allgather_us = 100, halo_us = 100, a2a_us = 100;
};

inline std::string measured_file(const MadeUpRow& row = {}) {
  const auto points = [](double us) {
    const std::string cost = std::to_string(us);
    return "[{\"bytes\": 1, \"us\": " + cost + "}, {\"bytes\": 1000000000, \"us\": " + cost + "}]";
  };
  return "{\"schema_version\": 1, \"rows\": [{\"world\": " + std::to_string(row.world) +
         ", \"nodes\": " + std::to_string(row.nodes) + ", \"transport\": \"" + row.transport +
         "\", \"device\": \"" + row.device + "\", \"allgather\": " + points(row.allgather_us) +
         ", \"halo\": " + points(row.halo_us) + ", \"a2a\": " + points(row.a2a_us) +
         ", \"provenance\": {\"library\": \"0\", \"date\": \"2026-01-02\"}}]}";
}

}  // namespace bdcp::test
