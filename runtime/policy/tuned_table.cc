#include "policy/tuned_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "bdcp/error.h"
#include "policy/json_file.h"
#include "policy/schema.h"

namespace bdcp::policy {
namespace {

template <class T>
std::optional<T> fact(const nlohmann::json& match, const char* key) {
  return match.contains(key) ? std::optional<T>(match[key].get<T>()) : std::nullopt;
}

auto identity(const TunedRow& row) {
  return std::tie(row.kernel, row.arch, row.head_dim, row.head_dim_v, row.gqa, row.dtype, row.layout_class);
}

}  // namespace

bool TunedRow::matches(const TunedFacts& facts) const {
  return (!head_dim || *head_dim == facts.head_dim) && (!head_dim_v || *head_dim_v == facts.head_dim_v) &&
         (!gqa || *gqa == facts.gqa) && (!dtype || *dtype == facts.dtype) &&
         (!layout_class || *layout_class == facts.layout_class);
}

int TunedRow::specificity() const {
  return head_dim.has_value() + head_dim_v.has_value() + gqa.has_value() + dtype.has_value() +
         layout_class.has_value();
}

TunedTable TunedTable::load(std::span<const std::string> files) {
  TunedTable table;
  for (const std::string& name : embedded_config_names("tuned/")) table.append(embedded_config(name), name);
  for (const std::string& file : files) table.append(read_text_file(file, "tuned table (kernels.tuned)"), file);
  return table;
}

TunedTable TunedTable::parse(std::string_view text, const std::string& origin) {
  TunedTable table;
  table.append(text, origin);
  return table;
}

void TunedTable::append(std::string_view text, const std::string& origin) {
  const nlohmann::json document = parse_document(text, origin);
  Schema("schema/tuned.schema.json").require(document, origin);
  const std::size_t first = rows_.size();
  for (std::size_t i = 0; i < document["rows"].size(); ++i) {
    const nlohmann::json& entry = document["rows"][i];
    const nlohmann::json& match = entry["match"];
    TunedRow row;
    row.kernel = entry["kernel"];
    row.arch = entry["arch"];
    row.head_dim = fact<int>(match, "head_dim");
    row.head_dim_v = fact<int>(match, "head_dim_v");
    row.gqa = fact<int>(match, "gqa");
    if (match.contains("dtype")) row.dtype = parse_dtype(match["dtype"].get<std::string>());
    row.layout_class = fact<std::string>(match, "layout_class");
    row.config = entry["config"].get<std::map<std::string, int>>();
    for (const auto& [key, value] : entry["provenance"].items())
      row.provenance[key] = value.is_string() ? value.get<std::string>() : canonical(value);
    row.origin = fmt::format("{} /rows/{}", origin, i);
    // Two rows for one case within a file are an editing slip; across files the later one is meant to win.
    for (std::size_t j = first; j < rows_.size(); ++j)
      if (identity(rows_[j]) == identity(row))
        throw Error(ErrorCode::invalid_policy,
                    fmt::format("{}: /rows/{}: {} repeats kernel, arch and match of /rows/{}; allowed: one row "
                                "for each",
                                origin, i, show(match), j - first));
    rows_.push_back(std::move(row));
  }
}

std::optional<TunedRow> TunedTable::find(std::string_view kernel, std::string_view arch,
                                         const TunedFacts& facts) const {
  const TunedRow* best = nullptr;
  for (const TunedRow& row : rows_)
    if (row.kernel == kernel && row.arch == arch && row.matches(facts) &&
        (!best || row.specificity() >= best->specificity()))
      best = &row;
  return best ? std::optional(*best) : std::nullopt;
}

}  // namespace bdcp::policy
