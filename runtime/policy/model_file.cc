#include "policy/model_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bdcp/error.h"
#include "policy/json_file.h"
#include "policy/schema.h"

namespace bdcp::policy {
namespace {

constexpr std::string_view kFolder = "models/", kSuffix = ".json";

}  // namespace

ModelShapes parse_model(std::string_view text, const std::string& origin) {
  const nlohmann::json document = parse_document(text, origin);
  Schema("schema/model.schema.json").require(document, origin);
  ModelShapes model{document["name"], {}};
  for (std::size_t i = 0; i < document["shapes"].size(); ++i) {
    const nlohmann::json& entry = document["shapes"][i];
    CallShape shape;
    shape.heads_q = entry["heads_q"];
    shape.heads_kv = entry["heads_kv"];
    shape.head_dim = entry["head_dim"];
    shape.head_dim_v = entry.value("head_dim_v", 0);
    shape.backward = entry.value("backward", true);
    if (entry.contains("scale")) shape.scale = entry["scale"].get<double>();
    if (shape.heads_q % shape.heads_kv != 0)
      throw Error(ErrorCode::invalid_policy,
                  fmt::format("{}: /shapes/{}/heads_q: {} is not allowed; allowed: a multiple of heads_kv ({})",
                              origin, i, shape.heads_q, shape.heads_kv));
    for (const nlohmann::json& name : entry["dtypes"]) {
      shape.dtype = parse_dtype(name.get<std::string>()).value();
      model.shapes.push_back(shape);
    }
  }
  return model;
}

ModelShapes load_model(const std::string& name_or_path) {
  const std::string embedded = fmt::format("{}{}{}", kFolder, name_or_path, kSuffix);
  if (const std::string_view text = embedded_config(embedded); !text.empty())
    return parse_model(text, embedded);
  const bool names_file = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(kSuffix);
  if (!names_file && !std::filesystem::exists(name_or_path)) {
    const std::vector<std::string> known = shipped_models();
    throw Error(
        ErrorCode::invalid_policy,
        fmt::format("model: \"{}\" is neither a shipped model nor a file{}; allowed: {}, or the path of a "
                    "model file",
                    name_or_path, suggestion(name_or_path, known), fmt::join(known, ", ")));
  }
  return parse_model(read_text_file(name_or_path, "model file"), name_or_path);
}

std::vector<std::string> shipped_models() {
  std::vector<std::string> names = embedded_config_names(kFolder);
  for (std::string& name : names)
    name = name.substr(kFolder.size(), name.size() - kFolder.size() - kSuffix.size());
  return names;
}

}  // namespace bdcp::policy
