#include "policy/measured_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bdcp/error.h"
#include "policy/json_file.h"
#include "policy/schema.h"

namespace bdcp::policy {
namespace {

MeasuredPoints read_points(const nlohmann::json& row, const char* path, const std::string& at) {
  MeasuredPoints points;
  for (std::size_t i = 0; i < row[path].size(); ++i) {
    const nlohmann::json& point = row[path][i];
    points.emplace_back(point["bytes"].get<std::int64_t>(), point["us"].get<double>());
    if (i > 0 && points[i].first <= points[i - 1].first)
      throw Error(ErrorCode::invalid_policy,
                  fmt::format("{}/{}/{}/bytes: {} comes after {}; allowed: ascending sizes", at, path, i,
                              points[i].first, points[i - 1].first));
  }
  return points;
}

}  // namespace

std::string to_text(const MeasuredSetting& setting) {
  return fmt::format("world {}, nodes {}, transport \"{}\", device \"{}\"", setting.world, setting.nodes,
                     setting.transport, setting.device);
}

std::string transport_kind(std::string_view transport) {
  const std::size_t space = transport.rfind(' ');
  const bool versioned = space != transport.npos && space + 1 < transport.size() &&
                         transport[space + 1] >= '0' && transport[space + 1] <= '9';
  return std::string(versioned ? transport.substr(0, space) : transport);
}

MeasuredExchange MeasuredExchange::parse(std::string_view text, std::string origin) {
  const nlohmann::json document = parse_document(text, origin);
  Schema("schema/exchange.schema.json").require(document, origin);
  MeasuredExchange measured;
  for (std::size_t i = 0; i < document["rows"].size(); ++i) {
    const nlohmann::json& row = document["rows"][i];
    const std::string at = fmt::format("{}: /rows/{}", origin, i);
    const MeasuredSetting setting{row["world"], row["nodes"], row["transport"], row["device"]};
    for (std::size_t j = 0; j < i; ++j)
      if (measured.rows_[j].setting == setting)
        throw Error(ErrorCode::invalid_policy,
                    fmt::format("{}: {} repeats /rows/{}; allowed: one row for each", at, to_text(setting), j));
    measured.rows_.push_back({setting, read_points(row, "allgather", at), read_points(row, "halo", at),
                              read_points(row, "a2a", at)});
  }
  measured.origin_ = std::move(origin);
  return measured;
}

const MeasuredRow& MeasuredExchange::at(const MeasuredSetting& setting) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(),
                                [&](const MeasuredRow& each) { return each.setting == setting; });
  if (row != rows_.end()) return *row;
  std::string known;
  for (const MeasuredRow& each : rows_) known += (known.empty() ? "" : "; ") + to_text(each.setting);
  throw Error(ErrorCode::invalid_policy, fmt::format("{}: nothing was measured with {}; the file has: {}",
                                                     origin_, to_text(setting), known));
}

}  // namespace bdcp::policy
