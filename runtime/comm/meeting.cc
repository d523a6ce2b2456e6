#include "comm/meeting.h"

#include <fmt/format.h>

#include <map>
#include <vector>

#include "comm/text.h"

namespace bdcp::comm {

const char* to_string(Call call) {
  switch (call) {
    case Call::frames:
      return "agreement";
    case Call::exchange_host:
      return "exchange in host memory";
    case Call::exchange_cuda:
      return "exchange in device memory";
    case Call::gather_host:
      return "all-gather in host memory";
    case Call::gather_cuda:
      return "all-gather in device memory";
    case Call::finish:
      return "end of a transfer";
    case Call::creation:
      return "creation of the communicator";
    case Call::transport:
      return "set-up of the device transport";
  }
  return "unknown call";
}

Error as_seen_by(int rank, const Failure& failure, const std::string& group) {
  const Error& error = failure.error;
  if (failure.everywhere) return error;
  const bool own = failure.origin == rank;
  Error seen(own ? error.code() : ErrorCode::peer_failed,
             fmt::format("group '{}': rank {} failed with {}: {}", group, failure.origin,
                         bdcp::to_string(error.code()), error.message()),
             ErrorScope::communicator);
  return seen.with_call(error.call()).with_log(error.log()).with_origin(failure.origin).with_retry(false);
}

std::optional<Error> calls_differ(const std::string& group, std::span<const Call> calls) {
  std::map<Call, std::vector<int>> callers;
  for (std::size_t rank = 0; rank < calls.size(); ++rank)
    callers[calls[rank]].push_back(static_cast<int>(rank));
  if (callers.size() == 1) return std::nullopt;
  std::string text = fmt::format("group '{}': ranks are in different calls: ", group);
  const char* separator = "";
  for (const auto& [call, ranks] : callers) {
    text += fmt::format("{}{} in {}", separator, ranks_text(ranks), to_string(call));
    separator = ", ";
  }
  return Error(ErrorCode::divergence, text, ErrorScope::communicator);
}

Error did_not_come(const std::string& group, std::span<const int> missing, Call call, double seconds) {
  Error error(ErrorCode::timeout,
              fmt::format("group '{}': {} did not come to the {} within {:.3g} s", group, ranks_text(missing),
                          to_string(call), seconds),
              ErrorScope::communicator);
  return error.with_origin(missing.front()).with_retry(false);
}

Error left_the_group() {
  return Error(ErrorCode::peer_failed, "it left the group (its last handle was destroyed)",
               ErrorScope::communicator);
}

}  // namespace bdcp::comm
