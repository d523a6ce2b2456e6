#include "policy/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>

#include "bdcp/error.h"
#include "policy/digest.h"

namespace bdcp::policy {
namespace {

using nlohmann::json;

// Spelling of each enumerator, in declaration order.
template <class Enum>
constexpr auto kNames = std::array<std::string_view, 0>{};
template <>
constexpr auto kNames<BackendKind> = std::to_array<std::string_view>({"auto", "hopper", "portable", "reference",
                                                                      "host"});
template <>
constexpr auto kNames<ExchangePath> = std::to_array<std::string_view>({"auto", "allgather", "halo", "a2a"});
template <>
constexpr auto kNames<PolicyValues::Transport> = std::to_array<std::string_view>({"auto", "nccl",
                                                                                  "copy_engine"});
template <>
constexpr auto kNames<PolicyValues::CrossNode> = std::to_array<std::string_view>({"allgather", "needed_only"});
template <>
constexpr auto kNames<PolicyValues::BackwardKv> = std::to_array<std::string_view>({"refetch", "keep"});
template <>
constexpr auto kNames<PolicyValues::GradPayload> = std::to_array<std::string_view>({"fp32", "input"});
template <>
constexpr auto kNames<PolicyValues::Balance> = std::to_array<std::string_view>({"none"});
template <>
constexpr auto kNames<PolicyValues::OnDowngrade> = std::to_array<std::string_view>({"warn", "error", "silent"});
template <>
constexpr auto kNames<PolicyValues::OnMiss> = std::to_array<std::string_view>({"jit", "fallback", "error"});
template <>
constexpr auto kNames<PolicyValues::LogLevel> = std::to_array<std::string_view>({"trace", "debug", "info",
                                                                                 "warn", "error", "off"});

template <class T>
json render(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return kNames<T>.at(static_cast<std::size_t>(value));
  else
    return value;
}
template <class T>
json render(const std::optional<T>& value) {
  return value ? render(*value) : json(nullptr);
}

template <class T>
void store(const json& value, T& out) {
  if constexpr (std::is_enum_v<T>) {
    const auto name = value.get<std::string>();
    for (std::size_t i = 0; i < kNames<T>.size(); ++i)
      if (kNames<T>[i] == name) {
        out = static_cast<T>(i);
        return;
      }
    throw Error(ErrorCode::internal,
                fmt::format("policy value \"{}\" passes the schema but has no enumerator", name));
  } else {
    out = value.get<T>();
  }
}
template <class T>
void store(const json& value, std::optional<T>& out) {
  if (value.is_null())
    out.reset();
  else
    store(value, out.emplace());
}

enum class Scope { group, local };

Field named(std::string pointer, Scope scope) {
  Field field;
  field.name = pointer.substr(1);
  field.name[field.name.find('/')] = '.';
  field.pointer = std::move(pointer);
  field.group = scope == Scope::group;
  return field;
}

// `member` returns a reference to one member of (const) PolicyValues.
template <class Member>
Field at(Scope scope, std::string pointer, Member member) {
  Field field = named(std::move(pointer), scope);
  field.set = [member](PolicyValues& values, const json& value) { store(value, member(values)); };
  field.get = [member](const PolicyValues& values) { return render(member(values)); };
  return field;
}

Field downgrade_code(const std::string& code) {
  Field field = named("/on_downgrade/" + code, Scope::group);
  field.set = [code](PolicyValues& values, const json& value) {
    if (value.is_null())
      values.on_downgrade.erase(code);
    else
      store(value, values.on_downgrade[code]);
  };
  field.get = [code](const PolicyValues& values) {
    const auto it = values.on_downgrade.find(code);
    return it == values.on_downgrade.end() ? json(nullptr) : render(it->second);
  };
  return field;
}

#define BDCP_FIELD(scope, section, member) \
  at(                                      \
      Scope::scope, "/" #section "/" #member, [](auto& values) -> auto& { return values.section.member; })

// All fields but those of on_downgrade, whose names are data.
std::vector<Field> members() {
  return {
      BDCP_FIELD(group, attention, backend),
      BDCP_FIELD(group, attention, deterministic),
      BDCP_FIELD(group, attention, batch_invariant),
      BDCP_FIELD(group, attention, sm_margin),
      BDCP_FIELD(group, exchange, path),
      BDCP_FIELD(group, exchange, transport),
      BDCP_FIELD(group, exchange, cross_node),
      BDCP_FIELD(group, exchange, backward_kv),
      BDCP_FIELD(group, exchange, grad_payload),
      BDCP_FIELD(group, exchange, landing_slots),
      BDCP_FIELD(group, exchange, landing_mib),
      BDCP_FIELD(group, exchange, balance),
      BDCP_FIELD(group, exchange, ranks_per_node),
      BDCP_FIELD(group, exchange, measured),
      BDCP_FIELD(group, agreement, timeout_s),
      BDCP_FIELD(group, agreement, heartbeat_s),
      BDCP_FIELD(group, failure, exchange_timeout_s),
      BDCP_FIELD(local, kernels, on_miss),
      BDCP_FIELD(local, kernels, cache_dir),
      BDCP_FIELD(local, kernels, seed_dirs),
      BDCP_FIELD(local, kernels, jobs),
      BDCP_FIELD(local, kernels, tuned),
      BDCP_FIELD(local, log, level),
  };
}
#undef BDCP_FIELD

}  // namespace

std::vector<Field> field_table(const Schema& schema) {
  std::vector<Field> fields;
  for (const auto& [code, unused] : schema.node("/on_downgrade")->at("properties").items())
    fields.push_back(downgrade_code(code));
  std::vector<Field> others = members();
  const auto tail = std::find_if(others.begin(), others.end(),
                                 [](const Field& field) { return field.pointer.starts_with("/agreement/"); });
  fields.insert(fields.begin(), others.begin(), tail);
  fields.insert(fields.end(), tail, others.end());
  for (Field& field : fields) {
    const json* node = schema.node(field.pointer);
    if (!node) throw Error(ErrorCode::internal, fmt::format("the policy schema lacks {}", field.pointer));
    field.path = node->value("x-path", false);
    field.by_content = node->value("x-compare", "") == "content";
  }
  return fields;
}

PolicyValues merge_local(const PolicyValues& group_from, const PolicyValues& local_from) {
  PolicyValues merged = group_from;
  for (const Field& field : members())
    if (!field.group) field.set(merged, field.get(local_from));
  return merged;
}

}  // namespace bdcp::policy
