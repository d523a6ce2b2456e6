// What moving rows between ranks takes: the file of `bdcp-autotune exchange`.
// configs/schema/exchange.schema.json.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bdcp::policy {

/// Microseconds by bytes; ascending, at least one.
using MeasuredPoints = std::vector<std::pair<std::int64_t, double>>;

/// What a row was measured with, and must be used with.
struct MeasuredSetting {
  int world = 2, nodes = 1;
  std::string transport;  ///< without its version: "nccl"
  std::string device;     ///< name of every rank's GPU, or "host"
  friend bool operator==(const MeasuredSetting&, const MeasuredSetting&) = default;
};
std::string to_text(const MeasuredSetting& setting);
/// "nccl 2.28.9" -> "nccl".
std::string transport_kind(std::string_view transport);

struct MeasuredRow {
  MeasuredSetting setting;
  MeasuredPoints allgather, halo, a2a;
};

/// Immutable.
class MeasuredExchange {
 public:
  /// Throws Error(invalid_policy) that starts with `origin` and has JSON pointer, value, and what is allowed.
  static MeasuredExchange parse(std::string_view text, std::string origin);
  /// The row of this setting. Throws Error(invalid_policy) naming origin, the setting and what the file has.
  const MeasuredRow& at(const MeasuredSetting& setting) const;
  const std::vector<MeasuredRow>& rows() const { return rows_; }

 private:
  std::string origin_;
  std::vector<MeasuredRow> rows_;
};

}  // namespace bdcp::policy
