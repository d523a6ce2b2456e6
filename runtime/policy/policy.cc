#include "bdcp/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "policy/json_file.h"
#include "policy/policy_state.h"

namespace bdcp {
namespace {

using nlohmann::json;

bool matches(const json& match, const GroupFacts& facts) {
  const auto holds = [&](const std::string& key, const json& value) {
    if (key == "name") return value == facts.name;
    if (key == "world") return value == facts.world_size;
    if (key == "min_world") return facts.world_size >= value.get<int>();
    if (key == "max_world") return facts.world_size <= value.get<int>();
    if (key == "nodes") return value == facts.nodes;
    if (key == "min_nodes") return facts.nodes >= value.get<int>();
    if (key == "max_nodes") return facts.nodes <= value.get<int>();
    return true;  // x- keys; the schema admits no others
  };
  return std::all_of(match.items().begin(), match.items().end(),
                     [&](const auto& entry) { return holds(entry.key(), entry.value()); });
}

// Calls `apply` for every assignment that holds for the group, lowest precedence first.
template <class Apply>
void for_each_assignment(const Policy::State& state, const GroupFacts& facts, Apply&& apply) {
  for (const auto& assignment : state.file) apply(assignment);
  for (const auto& rule : state.groups)
    if (matches(rule.match, facts))
      for (const auto& assignment : rule.set) apply(assignment);
  for (const auto& assignment : state.overrides) apply(assignment);
}

}  // namespace

PolicyValues::OnDowngrade PolicyValues::action_for(std::string_view code) const {
  auto it = on_downgrade.find(std::string(code));
  if (it == on_downgrade.end()) it = on_downgrade.find("default");
  return it == on_downgrade.end() ? OnDowngrade::warn : it->second;
}

Policy::Policy() : state_(std::make_shared<const State>(policy::built_in_state())) {}

Policy Policy::load(const Sources& sources) {
  return Policy(std::make_shared<const State>(policy::load_state(sources)));
}

PolicyValues Policy::resolve(const GroupFacts& facts) const {
  PolicyValues values;
  for_each_assignment(*state_, facts, [&](const State::Assignment& assignment) {
    state_->fields[assignment.field].set(values, assignment.value);
  });
  return values;
}

std::shared_ptr<const policy::MeasuredExchange> Policy::measured(const GroupFacts& facts) const {
  std::shared_ptr<const policy::MeasuredExchange> last;
  for_each_assignment(*state_, facts, [&](const State::Assignment& assignment) {
    if (state_->fields[assignment.field].by_content) last = assignment.measured;
  });
  return last;
}

std::vector<PolicyValues> Policy::variants(std::span<const std::string_view> names) const {
  PolicyValues base;
  const auto apply = [&](const State::Assignment& assignment) {
    state_->fields[assignment.field].set(base, assignment.value);
  };
  for (const auto& assignment : state_->file) apply(assignment);
  for (const auto& assignment : state_->overrides) apply(assignment);
  std::vector<PolicyValues> all{base};
  for (const std::string_view name : names) {
    const auto field = std::find_if(state_->fields.begin(), state_->fields.end(),
                                    [&](const policy::Field& each) { return each.name == name; });
    require(field != state_->fields.end(), ErrorCode::invalid_argument,
            [&] { return fmt::format("variants: the policy has no field '{}'", name); });
    const auto index = static_cast<std::size_t>(field - state_->fields.begin());
    const auto sets_it = [&](const State::Assignment& assignment) { return assignment.field == index; };
    if (std::any_of(state_->overrides.begin(), state_->overrides.end(), sets_it)) continue;
    std::vector<json> others;  // values of entries, apart from the base's
    for (const auto& rule : state_->groups)
      for (const auto& assignment : rule.set)
        if (sets_it(assignment) && assignment.value != field->get(base) &&
            std::find(others.begin(), others.end(), assignment.value) == others.end())
          others.push_back(assignment.value);
    const std::size_t count = all.size();
    for (const json& value : others)
      for (std::size_t i = 0; i < count; ++i) {
        all.push_back(all[i]);
        field->set(all.back(), value);
      }
  }
  return all;
}

std::vector<PolicyField> Policy::fields(const GroupFacts& facts) const {
  PolicyValues values;
  std::vector<const State::Assignment*> last(state_->fields.size());
  for_each_assignment(*state_, facts, [&](const State::Assignment& assignment) {
    state_->fields[assignment.field].set(values, assignment.value);
    last[assignment.field] = &assignment;
  });
  std::vector<PolicyField> out;
  for (std::size_t i = 0; i < last.size(); ++i) {
    const policy::Field& field = state_->fields[i];
    const std::string value = policy::canonical(field.get(values));
    const bool hashed = last[i] && !last[i]->content.empty();
    out.push_back({field.pointer, value, last[i] ? last[i]->origin : "built-in", field.group,
                   hashed ? last[i]->content : value});
  }
  return out;
}

std::string Policy::dump(const GroupFacts& facts) const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const PolicyField& field : fields(facts))
    out[field.pointer] = {{"value", nlohmann::ordered_json::parse(field.value)}, {"origin", field.origin}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string_view Policy::schema_json() { return policy::embedded_config("schema/policy.schema.json"); }

}  // namespace bdcp
