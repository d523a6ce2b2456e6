#include "comm/consensus_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "comm/bytes.h"

namespace bdcp::comm {
namespace {

std::string encode_body(const ConsensusInput& input) {
  std::string body;
  put(body, input.step);
  put(body, static_cast<std::uint32_t>(input.must_match.size()));
  for (const auto& [name, value] : input.must_match) {
    put_text(body, name);
    put_text(body, value);
  }
  put_text(body, input.facts);
  put(body, static_cast<std::uint8_t>(input.calls.has_value()));
  if (input.calls) {
    put(body, input.calls->count);
    put(body, input.calls->digest);
    put(body, static_cast<std::uint32_t>(input.calls->recent.size()));
    for (const CallEntry& entry : input.calls->recent) {
      put(body, entry.step);
      put(body, entry.call);
      put(body, static_cast<std::uint8_t>(entry.direction));
    }
  }
  return body;
}

/// Empty, or what is wrong.
std::string decode_ledger(Reader& reader, LedgerSnapshot& ledger) {
  ledger.count = reader.number<std::uint64_t>();
  ledger.digest = reader.number<std::uint64_t>();
  const auto kept = reader.number<std::uint32_t>();
  if (kept != std::min<std::uint64_t>(ledger.count, CallLedger::kKept))
    return fmt::format("it keeps {} of {} calls", kept, ledger.count);
  for (std::uint32_t i = 0; i < kept && reader.ok(); ++i) {
    CallEntry entry;
    entry.step = reader.number<std::uint64_t>();
    entry.call = reader.number<std::uint64_t>();
    const auto direction = reader.number<std::uint8_t>();
    if (direction > 1) return fmt::format("direction of a call is {}; allowed are 0 and 1", direction);
    entry.direction = direction == 0 ? Direction::forward : Direction::backward;
    ledger.recent.push_back(entry);
  }
  return {};
}

std::string decode_body(Reader& reader, ConsensusInput& input) {
  input.step = reader.number<std::uint64_t>();
  const auto fields = reader.number<std::uint32_t>();
  std::set<std::string_view> names;
  // Each field takes at least 8 bytes, so a wild count ends with the bytes.
  for (std::uint32_t i = 0; i < fields && reader.ok(); ++i) {
    const std::string_view name = reader.text(), value = reader.text();
    if (!reader.ok()) break;
    if (name.empty() || !names.insert(name).second) return "a field name is empty or there twice";
    input.must_match.emplace_back(name, value);
  }
  input.facts = reader.text();
  const auto has_calls = reader.number<std::uint8_t>();
  if (has_calls > 1) return fmt::format("flag of the calls is {}; allowed are 0 and 1", has_calls);
  if (has_calls) {
    if (std::string error = decode_ledger(reader, input.calls.emplace()); !error.empty()) return error;
  }
  if (!reader.ok()) return "its body ends inside a value";
  if (reader.left() > 0) return fmt::format("{} bytes follow its last value", reader.left());
  return {};
}

}  // namespace

std::string encode_frame(const ConsensusInput& input) {
  const std::string body = encode_body(input);
  std::string frame(kFrameMagic);
  put(frame, kFrameVersion);
  put(frame, static_cast<std::uint32_t>(std::min<std::size_t>(body.size(), UINT32_MAX)));
  if (body.size() <= kFrameMaxBody) frame += body;
  return frame;
}

DecodedFrame decode_frame(std::string_view frame) {
  DecodedFrame result;
  Reader reader(frame);
  const std::string_view magic = reader.take(kFrameMagic.size());
  const auto version = reader.number<std::uint32_t>();
  const std::size_t length = reader.number<std::uint32_t>();
  if (!reader.ok()) {
    result.error = fmt::format("it has {} bytes; a frame has at least {}", frame.size(), kFrameHeader);
  } else if (magic != kFrameMagic) {
    result.error = "it is no consensus frame of bdcp (magic differs)";
  } else if (version != kFrameVersion) {
    result.error =
        fmt::format("its frame version is {}; other ranks speak another ({} here)", version, kFrameVersion);
  } else if (length > kFrameMaxBody) {
    result.error = fmt::format("its body has {} bytes; allowed are {}", length, kFrameMaxBody);
  } else if (length != reader.left()) {
    result.error = fmt::format("its body has {} bytes; its header says {}", reader.left(), length);
  } else {
    result.error = decode_body(reader, result.input);
  }
  return result;
}

}  // namespace bdcp::comm
