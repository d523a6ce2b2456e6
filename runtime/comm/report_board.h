// ReportBoard: how far each rank's stream-ordered transfers are, as the control channel has heard.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "comm/reactor.h"

namespace bdcp::comm {

/// Transfers are numbered from 1 on every rank alike. Ranks report only while somebody waits. Thread safe.
class ReportBoard {
 public:
  explicit ReportBoard(int size) : ranks_(static_cast<std::size_t>(size)) {}

  struct Rank {
    std::uint64_t started = 0;  ///< the last transfer it is known to have started
    bool left = false;          ///< and it will start no other
  };
  /// True if this was news.
  bool record(int rank, std::uint64_t started, bool left = false) {
    std::lock_guard lock(mutex_);
    Rank& known = ranks_[static_cast<std::size_t>(rank)];
    if (started <= known.started && (!left || known.left)) return false;
    if (started > known.started) known.started = started;
    known.left = known.left || left;
    news_.set();
    return true;
  }
  std::vector<Rank> ranks() const {
    std::lock_guard lock(mutex_);
    return ranks_;
  }
  /// How many transfers this rank has issued: what it says when it leaves.
  std::atomic<std::uint64_t> issued = 0;
  /// Set on news.
  Signal& news() { return news_; }

 private:
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  Signal news_;
};

}  // namespace bdcp::comm
