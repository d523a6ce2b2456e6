#include "autotune/team.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "comm/launcher_env.h"

namespace bdcp::autotune {
namespace {

constexpr double kPatience = 600;  // seconds that a rank may be behind: it compiles, or checks numbers
constexpr std::size_t kMostValues = 65536;

}  // namespace

Team::Team(int world) {
  if (world == 1) {
    ranks_.emplace_back();
  } else {
    ranks_ = Communicator::in_process(world);
  }
}

Team::Team(Communicator comm) { ranks_.push_back(std::move(comm)); }

Team Team::assemble(std::optional<int> wanted, const std::string& name, const Env& env) {
  const int launched = comm::launched(env.launcher) ? comm::read_launch(env.launcher).world : 1;
  if (launched == 1) return Team(wanted.value_or(1));
  require(wanted.value_or(launched) == launched, ErrorCode::invalid_argument, [&] {
    return fmt::format("--world is {}, and the launcher started {} processes", *wanted, launched);
  });
  ProcessOptions options;
  options.name = name;
  return Team(Communicator::from_launcher(options));
}

void Team::run(const std::function<void(int, const Barrier&)>& body) const {
  if (world() == 1) {
    body(0, [] {});
    return;
  }
  if (processes()) {
    try {
      body(0, [this] { (void)comm(0).group()->all_gather_frames("barrier", comm::deadline_in(kPatience)); });
    } catch (const std::exception& error) {
      comm(0).abort(error.what());
      throw;
    }
    return;
  }
  std::barrier<> meeting(world());
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world()));
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

void Team::take_largest(std::vector<double>& values) const {
  if (!processes()) return;
  for (std::size_t begin = 0; begin < values.size(); begin += kMostValues) {
    const std::size_t count = std::min(kMostValues, values.size() - begin);
    const std::string own(reinterpret_cast<const char*>(&values[begin]), count * sizeof(double));
    for (const std::string& frame : comm(0).group()->all_gather_frames(own, comm::deadline_in(kPatience))) {
      std::vector<double> theirs(count);
      std::memcpy(theirs.data(), frame.data(), std::min(frame.size(), count * sizeof(double)));
      for (std::size_t i = 0; i < count; ++i) values[begin + i] = std::max(values[begin + i], theirs[i]);
    }
  }
}

std::uint64_t Team::agree_on(std::uint64_t value) const {
  if (!processes()) return value;
  const std::string own(reinterpret_cast<const char*>(&value), sizeof value);
  const auto frames = comm(0).group()->all_gather_frames(own, comm::deadline_in(kPatience));
  std::memcpy(&value, frames.front().data(), std::min(frames.front().size(), sizeof value));
  return value;
}

void Team::collect(std::vector<std::byte>& whole) const {
  if (!processes()) return;
  const auto bytes = static_cast<std::int64_t>(whole.size()) / world();
  const auto piece = [&](int of) {
    return comm::StridedRows{whole.data() + of * bytes, 1, 1, bytes, bytes, bytes};
  };
  std::vector<comm::TransferOp> sends, recvs;
  if (leads()) {
    for (int of = 1; of < world(); ++of) recvs.push_back({of, piece(of)});
  } else {
    sends.push_back({0, piece(rank(0))});
  }
  comm(0).group()->exchange(sends, recvs, {}, {.start_s = kPatience, .run_s = kPatience});
}

}  // namespace bdcp::autotune
