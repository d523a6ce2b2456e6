#include "comm/join_message.h"

#include <set>

#include "comm/bytes.h"

namespace bdcp::comm {
namespace {

constexpr std::size_t kMaxText = 4096;

void put_ranks(std::string& out, const std::vector<int>& ranks) {
  put(out, static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) put(out, static_cast<std::uint32_t>(rank));
}

bool take_ranks(Reader& reader, std::vector<int>& ranks) {
  const auto count = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    const auto rank = reader.number<std::uint32_t>();
    if (rank > INT32_MAX) return false;
    ranks.push_back(static_cast<int>(rank));
  }
  return reader.ok();
}

void put_endpoint(std::string& out, const Endpoint& endpoint) {
  put_text(out, endpoint.ip);
  put(out, endpoint.port);
}

bool take_text(Reader& reader, std::string& text) {
  text = reader.text();
  return reader.ok() && text.size() <= kMaxText;
}

bool take_endpoint(Reader& reader, Endpoint& endpoint) {
  if (!take_text(reader, endpoint.ip)) return false;
  endpoint.port = reader.number<std::uint16_t>();
  return reader.ok() && endpoint.port != 0;
}

}  // namespace

std::string encode(const JoinRequest& request) {
  std::string out;
  put_text(out, request.group);
  put_ranks(out, request.ranks);
  put(out, static_cast<std::uint32_t>(request.rank));
  put_text(out, request.host);
  put_endpoint(out, request.listener);
  return out;
}

std::optional<JoinRequest> decode_join(std::string_view body) {
  Reader reader(body);
  JoinRequest request;
  if (!take_text(reader, request.group) || !take_ranks(reader, request.ranks)) return std::nullopt;
  const auto rank = reader.number<std::uint32_t>();
  if (!take_text(reader, request.host) || !take_endpoint(reader, request.listener) || !reader.done())
    return std::nullopt;
  const std::set<int> distinct(request.ranks.begin(), request.ranks.end());
  if (request.ranks.empty() || distinct.size() != request.ranks.size() || rank >= request.ranks.size())
    return std::nullopt;
  request.rank = static_cast<int>(rank);
  return request;
}

std::string encode(const JoinAnswer& answer) {
  std::string out;
  put(out, static_cast<std::uint8_t>(answer.type));
  put_ranks(out, answer.missing);
  put_text(out, answer.session);
  put_text(out, answer.error);
  put(out, static_cast<std::uint32_t>(answer.hosts.size()));
  for (std::size_t i = 0; i < answer.hosts.size(); ++i) {
    put_text(out, answer.hosts[i]);
    put_endpoint(out, answer.endpoints[i]);
  }
  return out;
}

std::optional<JoinAnswer> decode_answer(std::string_view body) {
  Reader reader(body);
  JoinAnswer answer;
  const auto type = reader.number<std::uint8_t>();
  if (type < 1 || type > 3 || !take_ranks(reader, answer.missing) || !take_text(reader, answer.session))
    return std::nullopt;
  answer.type = static_cast<JoinAnswer::Type>(type);
  answer.error = reader.text();
  const auto count = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.ok(); ++i) {
    answer.hosts.emplace_back();
    answer.endpoints.emplace_back();
    if (!take_text(reader, answer.hosts.back()) || !take_endpoint(reader, answer.endpoints.back()))
      return std::nullopt;
  }
  if (!reader.done()) return std::nullopt;
  return answer;
}

}  // namespace bdcp::comm
