#include "comm/control_message.h"

#include <algorithm>

#include "comm/bytes.h"

namespace bdcp::comm {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 16;

/// Payloads of one meeting are nearly equal: each is what differs from the first.
void put_set(std::string& out, const std::vector<std::string>& payloads) {
  put(out, static_cast<std::uint32_t>(payloads.size()));
  const std::string_view first = payloads[0];
  put_text(out, first);
  for (std::size_t i = 1; i < payloads.size(); ++i) {
    const std::string_view each = payloads[i];
    const std::size_t most = std::min(first.size(), each.size());
    std::size_t prefix = 0, suffix = 0;
    while (prefix < most && first[prefix] == each[prefix]) ++prefix;
    while (suffix < most - prefix && first[first.size() - 1 - suffix] == each[each.size() - 1 - suffix])
      ++suffix;
    put(out, static_cast<std::uint32_t>(prefix));
    put(out, static_cast<std::uint32_t>(suffix));
    put_text(out, each.substr(prefix, each.size() - prefix - suffix));
  }
}

bool take_set(Reader& reader, int size, std::vector<std::string>& payloads) {
  if (reader.number<std::uint32_t>() != static_cast<std::uint32_t>(size)) return false;
  const std::string_view first = reader.text();
  if (!reader.ok() || first.size() > kMaxPayload) return false;
  payloads.emplace_back(first);
  for (int i = 1; i < size; ++i) {
    const std::size_t prefix = reader.number<std::uint32_t>(), suffix = reader.number<std::uint32_t>();
    const std::string_view middle = reader.text();
    if (!reader.ok() || prefix + suffix > first.size() || prefix + suffix + middle.size() > kMaxPayload)
      return false;
    std::string each(first.substr(0, prefix));
    each.append(middle).append(first.substr(first.size() - suffix));
    payloads.push_back(std::move(each));
  }
  return true;
}

std::string_view bounded(const std::string& text) { return std::string_view(text).substr(0, kMaxText); }

bool take_failure(Reader& reader, int size, std::optional<Failure>& failure) {
  const auto origin = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  const auto everywhere = reader.number<std::uint8_t>();
  const auto code = reader.number<std::uint8_t>();
  const auto named = static_cast<std::int32_t>(reader.number<std::uint32_t>());
  const std::string_view message = reader.text(), call = reader.text(), log = reader.text();
  if (!reader.ok() || origin < -1 || origin >= size || named < -1 || named >= size || everywhere > 1)
    return false;
  // A newer peer's code still names the rank and its text.
  const bool known = code <= static_cast<std::uint8_t>(ErrorCode::internal);
  Error error(known ? static_cast<ErrorCode>(code) : ErrorCode::peer_failed, std::string(message),
              ErrorScope::communicator);
  error.with_call(std::string(call)).with_log(std::string(log)).with_origin(named).with_retry(false);
  failure = Failure{origin, everywhere == 1, std::move(error)};
  return true;
}

}  // namespace

std::size_t max_message(int size) {
  return std::min<std::size_t>(UINT32_MAX, 1024 + static_cast<std::size_t>(size) * (kMaxPayload + 12));
}

std::string encode(const ControlMessage& message) {
  using Type = ControlMessage::Type;
  std::string out;
  put(out, static_cast<std::uint8_t>(message.type));
  put(out, static_cast<std::uint8_t>(message.channel));
  put(out, static_cast<std::uint8_t>(message.call));
  put(out, message.number);
  put(out, static_cast<std::uint32_t>(message.rank));
  put(out, message.milliseconds);
  if (message.type == Type::arrive) put_text(out, message.payload);
  if (message.type == Type::complete) put_set(out, message.payloads);
  if (message.type == Type::failure) {
    const Failure& failure = *message.failure;
    put(out, static_cast<std::uint32_t>(failure.origin));
    put(out, static_cast<std::uint8_t>(failure.everywhere));
    put(out, static_cast<std::uint8_t>(failure.error.code()));
    put(out, static_cast<std::uint32_t>(failure.error.origin_rank()));
    put_text(out, bounded(failure.error.message()));
    put_text(out, bounded(failure.error.call()));
    put_text(out, bounded(failure.error.log()));
  }
  return out;
}

std::optional<ControlMessage> decode(std::string_view body, int size) {
  using Type = ControlMessage::Type;
  Reader reader(body);
  ControlMessage message;
  const auto type = reader.number<std::uint8_t>();
  const auto channel = reader.number<std::uint8_t>();
  const auto call = reader.number<std::uint8_t>();
  message.number = reader.number<std::uint64_t>();
  const auto rank = reader.number<std::uint32_t>();
  message.milliseconds = reader.number<std::uint32_t>();
  if (!reader.ok() || type < 1 || type > 7 || channel >= kChannels || call >= kCalls ||
      rank >= static_cast<std::uint32_t>(size))
    return std::nullopt;
  message.type = static_cast<Type>(type);
  message.channel = static_cast<Channel>(channel);
  message.call = static_cast<Call>(call);
  message.rank = static_cast<int>(rank);
  if (message.type == Type::arrive) {
    message.payload = reader.text();
    if (message.payload.size() > kMaxPayload) return std::nullopt;
  }
  if (message.type == Type::complete && !take_set(reader, size, message.payloads)) return std::nullopt;
  if (message.type == Type::failure && !take_failure(reader, size, message.failure)) return std::nullopt;
  if (!reader.done()) return std::nullopt;
  return message;
}

}  // namespace bdcp::comm
