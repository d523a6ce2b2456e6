// What the ranks of the multi-process tests and the tests themselves must know alike.
#pragma once

#include <cstring>
#include <istream>
#include <ostream>

#include "step/world.h"

namespace bdcp::test {

inline constexpr const char* kPaths[] = {"allgather", "halo", "a2a"};
inline const CallShape kParityShape{.heads_q = 4, .heads_kv = 2, .head_dim = 16, .dtype = DType::f32};
inline constexpr std::uint64_t kParitySeed = 77;

/// Documents over chunk boundaries, none longer than two chunks, and a padding tail.
inline DocLayout parity_layout(int world) {
  return DocLayout::from_lengths(std::vector<std::int64_t>{20, 25, 3, 30, 17},
                                 {.world_size = world, .padding_tokens = 5});
}

/// Calls visit(bytes, count) for every result of a rank, in one order.
template <class Visit>
void each_result(RankRun& run, const Visit& visit) {
  for (HostTensor* tensor : {&run.out, &run.dq, &run.dk, &run.dv}) {
    const TensorView view = tensor->view();
    visit(static_cast<char*>(view.data),
          static_cast<std::size_t>(view.tokens * view.heads * view.dim) * size_of(view.dtype));
  }
  visit(reinterpret_cast<char*>(run.lse.data.data()), run.lse.data.size() * sizeof(float));
}

inline void write_results(std::ostream& out, RankRun& run) {
  each_result(run,
              [&](char* bytes, std::size_t count) { out.write(bytes, static_cast<std::streamsize>(count)); });
}

}  // namespace bdcp::test
