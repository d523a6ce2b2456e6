// One thread per rank, and what each of them ended with.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bdcp/communicator.h"
#include "bdcp/error.h"
#include "comm/group.h"

namespace bdcp::test {

using Outcomes = std::vector<std::optional<Error>>;

/// Runs body(rank's handle) on a thread per rank; each thread owns its handle, which is destroyed when the body
/// ends unless the caller keeps a copy. The error of each rank, or nothing.
inline Outcomes run_ranks(std::vector<Communicator> handles, const std::function<void(Communicator&)>& body) {
  Outcomes outcomes(handles.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < handles.size(); ++rank)
    threads.emplace_back([&outcomes, &body, rank, handle = std::move(handles[rank])]() mutable {
      try {
        body(handle);
      } catch (const Error& error) {
        outcomes[rank] = error;
      }
      handle = Communicator();
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Text of every rank's error, for failure messages.
inline std::string describe(const Outcomes& outcomes) {
  std::string text;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    text +=
        "rank " + std::to_string(rank) + ": " + (outcomes[rank] ? outcomes[rank]->what() : "no error") + "\n";
  return text;
}
inline bool all_well(const Outcomes& outcomes) {
  for (const auto& outcome : outcomes)
    if (outcome) return false;
  return true;
}

}  // namespace bdcp::test
