#include "layout_input.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "common/workloads.h"

namespace bdcp::tools {
namespace {

using nlohmann::json;
using Ints = std::vector<std::int64_t>;

Ints integers_of(const json& document, const std::string& file, const char* key) {
  const json& value = document.at(key);
  require(value.is_array(), ErrorCode::invalid_argument,
          [&] { return fmt::format("{}: {} is {}; allowed: a list of integers", file, key, value.dump()); });
  Ints out;
  out.reserve(value.size());
  for (const json& entry : value) {
    require(entry.is_number_integer(), ErrorCode::invalid_argument, [&] {
      return fmt::format("{}: {}[{}] is {}; allowed: integers", file, key, out.size(), entry.dump());
    });
    out.push_back(entry.get<std::int64_t>());
  }
  return out;
}

json read_json(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  require(stream.good(), ErrorCode::invalid_argument,
          [&] { return fmt::format("--layout: {}: {}", file, std::strerror(errno)); });
  try {
    return json::parse(stream);
  } catch (const json::exception& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", file, error.what()));
  }
}

DocLayout read_layout_file(const std::string& file, const LayoutOptions& options) {
  const json document = read_json(file);
  constexpr const char* allowed = "one of lengths, doc_ids, cu_seqlens, and cu_seqlens_k beside cu_seqlens";
  require(document.is_object(), ErrorCode::invalid_argument,
          [&] { return fmt::format("{}: not a JSON object; allowed: {}", file, allowed); });
  int described = 0;
  for (const auto& item : document.items()) {
    const std::string& key = item.key();
    const bool describes = key == "lengths" || key == "doc_ids" || key == "cu_seqlens";
    require(describes || key == "cu_seqlens_k", ErrorCode::invalid_argument,
            [&] { return fmt::format("{}: unknown key \"{}\"; allowed: {}", file, key, allowed); });
    described += describes;
  }
  require(described == 1 && (document.contains("cu_seqlens") || !document.contains("cu_seqlens_k")),
          ErrorCode::invalid_argument, [&] { return fmt::format("{}: allowed: {}", file, allowed); });
  if (document.contains("lengths")) {
    return DocLayout::from_lengths(integers_of(document, file, "lengths"), options);
  }
  if (document.contains("doc_ids")) {
    return DocLayout::from_doc_ids(integers_of(document, file, "doc_ids"), options);
  }
  const Ints cu = integers_of(document, file, "cu_seqlens");
  if (!document.contains("cu_seqlens_k")) return DocLayout::from_cu_seqlens(cu, options);
  return DocLayout::from_cu_seqlens(cu, integers_of(document, file, "cu_seqlens_k"), options);
}

}  // namespace

DocLayout read_layout(const PlanOptions& options) {
  const LayoutOptions layout{.world_size = options.world, .padding_tokens = options.padding};
  if (options.lengths) return DocLayout::from_lengths(parse_lengths(*options.lengths, "--lengths"), layout);
  if (options.pack) return DocLayout::from_lengths(find_pack(*options.pack), layout);
  if (options.doc_ids) return DocLayout::from_doc_ids(parse_integers(*options.doc_ids, "--doc-ids"), layout);
  if (options.layout_file) return read_layout_file(*options.layout_file, layout);
  const Ints cu = parse_integers(options.cu_seqlens.value_or(""), "--cu-seqlens");
  if (!options.cu_seqlens_k) return DocLayout::from_cu_seqlens(cu, layout);
  return DocLayout::from_cu_seqlens(cu, parse_integers(*options.cu_seqlens_k, "--cu-seqlens-k"), layout);
}

}  // namespace bdcp::tools
