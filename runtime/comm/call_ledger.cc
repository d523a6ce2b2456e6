#include "comm/call_ledger.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

#include "comm/text.h"

namespace bdcp::comm {
namespace {

/// The entry at `index` of the whole sequence; "nothing" past its end. Must not be older than the ring.
std::string entry_text(const LedgerSnapshot& ledger, std::uint64_t index) {
  if (index >= ledger.count) return "nothing";
  const CallEntry& entry = ledger.recent[index - ledger.first()];
  return fmt::format("(step {}, {}, call {})", entry.step, to_string(entry.direction), entry.call);
}

}  // namespace

std::string LedgerSnapshot::value() const { return fmt::format("{}:{:016x}", count, digest); }

void CallLedger::record(std::uint64_t step, Direction direction, std::uint64_t call) {
  std::lock_guard lock(mutex_);
  const std::array<std::uint64_t, 4> words{digest_, step, static_cast<std::uint64_t>(direction), call};
  digest_ = XXH64(words.data(), sizeof words, 0);
  ring_[count_++ % kKept] = {step, call, direction};
}

LedgerSnapshot CallLedger::snapshot() const {
  std::lock_guard lock(mutex_);
  LedgerSnapshot result{count_, digest_, {}};
  const std::uint64_t kept = std::min<std::uint64_t>(count_, kKept);
  result.recent.reserve(kept);
  for (std::uint64_t i = count_ - kept; i < count_; ++i) result.recent.push_back(ring_[i % kKept]);
  return result;
}

std::string describe_ledger_difference(std::span<const LedgerSnapshot> by_rank) {
  std::uint64_t begin = 0, end = 0;
  bool equal = true;
  for (const LedgerSnapshot& ledger : by_rank) {
    begin = std::max(begin, ledger.first());
    end = std::max(end, ledger.count);
    equal = equal && ledger.count == by_rank[0].count && ledger.digest == by_rank[0].digest;
  }
  if (equal) return {};
  for (std::uint64_t index = begin; index < end; ++index) {
    // By entry, in the order of the first rank that has it. A ledger that ends before `begin` did nothing here.
    std::vector<std::pair<std::string, std::vector<int>>> holders;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const std::string text = entry_text(by_rank[rank], index);
      auto found = std::find_if(holders.begin(), holders.end(), [&](const auto& h) { return h.first == text; });
      if (found == holders.end()) found = holders.insert(found, {text, {}});
      found->second.push_back(static_cast<int>(rank));
    }
    if (holders.size() < 2) continue;
    std::string text = fmt::format("call {}: ", index);
    const char* separator = "";
    for (const auto& [entry, ranks] : holders) {
      text += fmt::format("{}{} did {}", separator, ranks_text(ranks), entry);
      separator = ", ";
    }
    return text;
  }
  return fmt::format("the sequences of calls differ more than {} calls ago", CallLedger::kKept);
}

}  // namespace bdcp::comm
