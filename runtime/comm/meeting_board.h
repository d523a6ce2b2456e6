// MeetingBoard: where the caller's threads of one rank wait for what its control channel learns.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/awake.h"
#include "comm/group.h"
#include "comm/meeting.h"
#include "comm/reactor.h"

namespace bdcp::comm {

/// Thread safe. One pending failure: the first this rank learns of; it is final.
class MeetingBoard {
 public:
  MeetingBoard(std::string group, int rank);

  /// This rank's next meeting on a channel. Throws the pending failure, with the call in its text.
  std::uint64_t begin(Channel channel, Call call);
  enum class Outcome { done, late, somebody_left };
  /// Waits for complete(); throws the pending failure, with the call in its text. somebody_left: of a meeting
  /// that can no longer come about; `left` says who.
  Outcome wait(Channel channel, std::uint64_t number, Call call, Deadline deadline,
               std::vector<std::string>& payloads, int& left);

  void complete(Channel channel, std::uint64_t number, std::vector<std::string> payloads);
  /// True if this was news.
  bool record(Failure failure);
  bool leave(int rank);

  /// Throws the pending failure, with the latest call in its text.
  void check() const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::optional<Failure> failure() const;
  std::vector<int> left() const;
  /// Readable once a failure is pending.
  int failure_fd() const { return failure_signal_.fd(); }

 private:
  struct Lane {
    std::uint64_t begun = 0;
    std::atomic<std::uint64_t> completed = 0;
    std::vector<std::string> payloads;
  };
  const std::string group_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Lane, kChannels> lanes_;
  Call last_ = Call::creation;  ///< that this rank began, on either channel
  std::optional<Failure> failure_;
  std::vector<int> left_;
  Awake awake_;
  std::atomic<bool> failed_ = false;
  Signal failure_signal_;
};

}  // namespace bdcp::comm
