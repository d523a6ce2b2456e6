// One prepared case: a step per rank, its tensors in the memory it runs in, and the calls on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "autotune/memory.h"
#include "autotune/place.h"
#include "autotune/team.h"
#include "bdcp/runtime.h"

namespace bdcp::bench {

using autotune::Block;
using autotune::Memory;
using autotune::Place;
using autotune::Team;

/// Tensors of the whole packed sequence, all ranks together, in the call's dtype, [rows, heads, dim].
struct Inputs {
  std::vector<std::byte> q, k, v, dout;
};
struct Outputs {
  std::vector<std::byte> out, dq, dk, dv;
  std::vector<float> lse;  ///< [heads_q, rows]
};

/// Medians over the iterations; of the slowest rank in each.
struct Timing {
  double ms = 0;
  std::optional<double> host_us;  ///< host time of one prepared call; GPU only
  /// World > 1: how much longer the exchange makes a call that all ranks begin together, see mean_exposed().
  /// None where no call could be timed.
  std::optional<double> exposed_us;
};

/// How many calls in a row host time is taken over, and how often, by what one takes on the GPU. The first call
/// of a row finds an idle device and takes longer, so that rows are as long as a model is deep, an even number
/// since two steps take turns; where calls are long there are fewer rows first, then shorter ones.
struct HostCalls {
  int rounds, layers;
};
HostCalls host_calls(double gpu_ms);

/// How many of `wanted` calls are left to warm up after two, by what the second took.
int further_warmup(int wanted, double ms);

/// What one rank took for a call, in microseconds: all in all, and but for its waits for the exchange.
struct CallTime {
  double all = 0, working = 0;
};
/// `all_us`, and the waits by what the step said before the call and after it. Infinite where a wait went
/// untimed: the call does not count then, whatever other ranks measured.
CallTime call_time(double all_us, const ExposedExchange& before, const ExposedExchange& after,
                   Direction direction);
/// The mean, over calls, of what the slowest rank took less what the slowest would take without waits: a rank
/// with little work that waits for one with much exposes nothing. nullopt if no call counts.
std::optional<double> mean_exposed(const std::vector<CallTime>& slowest);

/// Not thread safe. The team's ranks in this process share the place; every process of a team does the same
/// calls.
class Session {
 public:
  Session(const Runtime& runtime, const DocLayout& layout, const CallShape& shape, const Place& place,
          const Team& team);

  const Decision& decision() const { return ranks_.front().step->decision(); }
  /// Rows of Q and of K/V over all ranks, padding included.
  std::int64_t rows() const { return rows_ * team_.world(); }
  std::int64_t key_rows() const { return key_rows_ * team_.world(); }
  const CallShape& shape() const { return shape_; }

  void upload(const Inputs& inputs);
  /// Fills every output, and the workspace, with 0xFF bytes (NaN), so that a row that is not written shows.
  void poison_outputs();
  void forward();
  /// Needs the outputs of forward().
  void backward();
  /// Of all ranks, on the leader. Gradients only if the session's shape prepares backward.
  Outputs download() const;

  /// CUDA events on a GPU, wall clock on the host; `warmup` calls come first, fewer where they are long.
  Timing time(Direction direction, int iters, int warmup);
  /// Median host time of preparing the same step again, in microseconds.
  double time_begin_step(int iters);

 private:
  struct Rank {
    std::optional<Step> step, twin;  ///< twin: a second step to alternate with, for host time
    Stream stream;
    device::OwnedStream owned_stream;
    Block q, k, v, dout, out, lse, dq, dk, dv, workspace, kept;
  };
  struct Delay;

  Step begin(int local) const;
  void call(const Rank& rank, const Step& step, Direction direction) const;
  void finish(const Rank& rank) const;
  void allocate(Rank& rank);
  std::vector<std::byte> download(Block Rank::*tensor) const;
  double gpu_ms(const Rank& rank, Direction direction, const Delay& delay) const;
  std::vector<double> slowest(int iters, const std::function<double(int local, const Team::Barrier&)>& sample);
  void warm_up(Direction direction, int calls);
  double host_us(Direction direction, const HostCalls& calls);
  CallTime timed_call(const Rank& rank, Direction direction, const Team::Barrier& barrier) const;
  std::optional<double> exposed_us(Direction direction, int calls);

  const Runtime& runtime_;
  DocLayout layout_;
  CallShape shape_;
  Place place_;
  const Team& team_;
  std::int64_t rows_ = 0, key_rows_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace bdcp::bench
