#include "bench/team.h"

#include <barrier>
#include <exception>
#include <mutex>
#include <thread>

namespace bdcp::bench {

Team::Team(int world) {
  if (world == 1) {
    ranks_.emplace_back();
  } else {
    ranks_ = Communicator::in_process(world);
  }
}

void Team::run(const std::function<void(int, const Barrier&)>& body) const {
  if (world() == 1) {
    body(0, [] {});
    return;
  }
  std::barrier<> meeting(world());
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, [&] { meeting.arrive_and_wait(); });
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        comm(rank).abort(error.what());
        meeting.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace bdcp::bench
