#include "autotune/exchange_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "bdcp/version.h"
#include "comm/group.h"
#include "plan/exchange_path.h"
#include "policy/json_file.h"
#include "policy/measured_exchange.h"

namespace bdcp::autotune {
namespace {

using Json = nlohmann::ordered_json;

std::string today() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(now));
}

/// Whoever reads meanwhile sees the old file or the new one.
void replace_file(const std::string& path, const std::string& text) {
  const std::string draft = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream out(draft, std::ios::binary);
  out << text;
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(draft, path, failed);
  if (out && !failed) return;
  std::error_code ignored;
  std::filesystem::remove(draft, ignored);
  throw Error(ErrorCode::io_error, fmt::format("{} cannot be written", path));
}

}  // namespace

std::string with_row(const std::string& before, const std::string& origin,
                     const std::vector<ExchangeLine>& lines, int nodes, const std::string& date) {
  const ExchangeLine& first = lines.front();
  const policy::MeasuredSetting setting{first.world, nodes, policy::transport_kind(first.transport),
                                        first.device};
  Json document{{"schema_version", 1}, {"rows", Json::array()}};
  if (!before.empty()) {
    (void)policy::MeasuredExchange::parse(before, origin);
    document = Json::parse(before);
  }
  Json row{{"world", setting.world},
           {"nodes", setting.nodes},
           {"transport", setting.transport},
           {"device", setting.device}};
  for (const char* path : {"allgather", "halo", "a2a"}) {
    row[path] = Json::array();
    for (const ExchangeLine& line : lines)
      if (line.path == path)
        row[path].push_back({{"bytes", line.bytes}, {"us", std::max(std::round(line.us * 100) / 100, 0.01)}});
  }
  row["provenance"] = {
      {"library", BDCP_VERSION_STRING}, {"transport", first.transport}, {"iters", first.iters}, {"date", date}};
  Json& rows = document["rows"];
  const auto same = std::find_if(rows.begin(), rows.end(), [&](const Json& each) {
    return policy::MeasuredSetting{each["world"], each["nodes"], each["transport"], each["device"]} == setting;
  });
  if (same == rows.end()) {
    rows.push_back(row);
  } else {
    *same = row;
  }
  std::string text = document.dump(1) + "\n";
  (void)policy::MeasuredExchange::parse(text, origin);
  return text;
}

std::vector<ExchangeLine> tune_exchange(const ExchangeTuning& tuning, const Team& team) {
  ExchangeOptions options = tuning.measure;
  options.paths = {"allgather", "halo", "a2a"};
  std::sort(options.sizes.begin(), options.sizes.end());
  options.sizes.erase(std::unique(options.sizes.begin(), options.sizes.end()), options.sizes.end());
  require(!options.sizes.empty(), ErrorCode::invalid_argument, "sizes is empty; allowed: one size or more");
  std::string before;
  if (team.leads() && std::filesystem::exists(tuning.file)) {
    before = policy::read_text_file(tuning.file, "measured exchange file");
    (void)policy::MeasuredExchange::parse(before, tuning.file);  // known before minutes of measuring
  }
  std::vector<ExchangeLine> lines;
  measure_exchange(options, team, [&](const ExchangeLine& line) { lines.push_back(line); });
  const std::vector<std::string>& hosts = team.comm(0).group()->hosts();
  const int nodes =
      plan::count_nodes(hosts, tuning.ranks_per_node > 0 ? std::optional(tuning.ranks_per_node) : std::nullopt);
  if (team.leads()) replace_file(tuning.file, with_row(before, tuning.file, lines, nodes, today()));
  return lines;
}

}  // namespace bdcp::autotune
