#include "comm/consensus.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/consensus_frame.h"
#include "comm/text.h"

namespace bdcp::comm {
namespace {

constexpr std::size_t kMaxValues = 8;  // per field, in a message

std::size_t first_difference(const std::string& a, const std::string& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// `policy: "x" on rank 0, "y" on ranks 1-3`.
std::string describe_field(const std::string& name, const std::vector<const std::string*>& by_rank) {
  static const std::string kAbsent;
  std::vector<std::pair<const std::string*, std::vector<int>>> holders;  // in order of first rank
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto same = [&](const auto& holder) {
      return (holder.first == nullptr) == (by_rank[rank] == nullptr) &&
             (!holder.first || *holder.first == *by_rank[rank]);
    };
    auto found = std::find_if(holders.begin(), holders.end(), same);
    if (found == holders.end()) found = holders.insert(holders.end(), {by_rank[rank], {}});
    found->second.push_back(static_cast<int>(rank));
  }
  const std::string& first = holders[0].first ? *holders[0].first : kAbsent;
  const std::string& second = holders[1].first ? *holders[1].first : kAbsent;
  const std::size_t around = first_difference(first, second);
  std::string text = name + ": ";
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (i == kMaxValues) {
      text += fmt::format(", and {} other values", holders.size() - i);
      break;
    }
    const auto& [value, ranks] = holders[i];
    text += fmt::format("{}{} on {}", i ? ", " : "", value ? shortened(*value, around) : "nothing",
                        ranks_text(ranks));
  }
  return text;
}

/// Every frame decoded, or Error(divergence) naming the ranks whose frames are not sound.
std::vector<ConsensusInput> decode_all(const Group& group, const std::vector<std::string>& frames) {
  std::vector<ConsensusInput> inputs;
  std::map<std::string, std::vector<int>> errors;
  for (std::size_t rank = 0; rank < frames.size(); ++rank) {
    DecodedFrame decoded = decode_frame(frames[rank]);
    if (!decoded.error.empty()) errors[decoded.error].push_back(static_cast<int>(rank));
    inputs.push_back(std::move(decoded.input));
  }
  if (errors.empty()) return inputs;
  std::string text = fmt::format("group '{}': unusable consensus frame", group.name());
  int origin = static_cast<int>(frames.size());
  for (const auto& [error, ranks] : errors) {
    text += fmt::format("; from {}: {}", ranks_text(ranks), error);
    origin = std::min(origin, ranks.front());
  }
  throw Error(ErrorCode::divergence, text, ErrorScope::step).with_origin(origin);
}

/// Field names in the order ranks list them, each once.
std::vector<std::string> field_names(const std::vector<ConsensusInput>& inputs) {
  std::vector<std::string> names;
  std::map<std::string_view, bool> seen;
  for (const ConsensusInput& input : inputs)
    for (const auto& [name, value] : input.must_match)
      if (seen.emplace(name, true).second) names.push_back(name);
  return names;
}

/// Adds step number and calls as ordinary fields, so that one comparison serves all.
void add_implied_fields(ConsensusInput& input) {
  input.must_match.emplace(input.must_match.begin(), "step", std::to_string(input.step));
  if (input.calls) input.must_match.emplace_back("calls", input.calls->value());
}

std::string describe_calls(const std::vector<ConsensusInput>& inputs) {
  std::vector<LedgerSnapshot> ledgers;
  ledgers.reserve(inputs.size());
  for (const ConsensusInput& input : inputs) ledgers.push_back(input.calls.value_or(LedgerSnapshot{}));
  return describe_ledger_difference(ledgers);
}

/// Throws Error(divergence) that names every field in which the ranks differ, unless that is their order alone.
void raise_differences(const Group& group, const std::vector<ConsensusInput>& inputs) {
  std::string differences;
  std::vector<std::map<std::string_view, const std::string*>> values(inputs.size());
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    for (const auto& [name, value] : inputs[rank].must_match) values[rank].emplace(name, &value);
  for (const std::string& name : field_names(inputs)) {
    std::vector<const std::string*> by_rank;
    for (const auto& fields : values) {
      const auto found = fields.find(name);
      by_rank.push_back(found == fields.end() ? nullptr : found->second);
    }
    const auto same = [&](const std::string* value) { return value && by_rank[0] && *value == *by_rank[0]; };
    if (std::all_of(by_rank.begin(), by_rank.end(), same)) continue;
    differences += fmt::format("{}{}", differences.empty() ? "" : "; ", describe_field(name, by_rank));
    if (name == "calls") differences += fmt::format(" ({})", describe_calls(inputs));
  }
  if (!differences.empty())
    throw Error(ErrorCode::divergence, fmt::format("group '{}': ranks disagree: {}", group.name(), differences),
                ErrorScope::step);
}

}  // namespace

std::vector<std::string> agree(Group& group, const ConsensusInput& input, Deadline deadline) {
  for (const auto& [name, value] : input.must_match)
    if (name.empty() || name == "step" || (name == "calls" && input.calls))
      throw Error(ErrorCode::internal, fmt::format("consensus field '{}' is empty or implied", name));
  std::vector<ConsensusInput> inputs =
      decode_all(group, group.all_gather_frames(encode_frame(input), deadline));
  for (ConsensusInput& each : inputs) add_implied_fields(each);

  const auto& first = inputs.front();
  const bool same = std::all_of(inputs.begin(), inputs.end(), [&](const ConsensusInput& each) {
    return each.must_match == first.must_match;
  });
  if (!same) raise_differences(group, inputs);

  std::vector<std::string> facts;
  facts.reserve(inputs.size());
  for (ConsensusInput& each : inputs) facts.push_back(std::move(each.facts));
  return facts;
}

}  // namespace bdcp::comm
