// Communicators of several ranks in one process that talk as processes do.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bdcp/communicator.h"

namespace bdcp::test {

/// What a framework's broadcast would do between processes.
class Blackboard {
 public:
  Broadcast of(int rank) {
    return [this, rank](const std::string& bytes) {
      std::unique_lock lock(mutex_);
      if (rank == 0) {
        bytes_ = bytes;
        changed_.notify_all();
      }
      changed_.wait(lock, [this] { return !bytes_.empty(); });
      return bytes_;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string bytes_;
};

/// One handle per rank, made by from_broadcast() on a thread each. Throws what the last of them threw.
inline std::vector<Communicator> broadcast_ranks(int world, const std::string& name = "cp") {
  Blackboard board;
  std::vector<Communicator> ranks(static_cast<std::size_t>(world));
  std::exception_ptr failed;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        ProcessOptions options;
        options.name = name;
        options.host_interface = "127.0.0.1";
        options.timeout_s = 60;
        options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
        ranks[static_cast<std::size_t>(rank)] =
            Communicator::from_broadcast(rank, world, board.of(rank), options);
      } catch (...) {
        std::lock_guard lock(mutex);
        failed = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failed) std::rethrow_exception(failed);
  return ranks;
}

}  // namespace bdcp::test
