#include "bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>

namespace bdcp::bench {

Workload Workload::from_lengths(std::string name, const std::vector<std::int64_t>& lengths,
                                std::int64_t padding) {
  Workload workload;
  workload.name = std::move(name);
  workload.padding = padding;
  for (const std::int64_t length : lengths) workload.cu_q.push_back(workload.cu_q.back() + length);
  workload.cu_k = workload.cu_q;
  return workload;
}

double Workload::area() const {
  double pairs = 0;
  for (std::size_t i = 0; i + 1 < cu_q.size(); ++i) {
    const double q = static_cast<double>(cu_q[i + 1] - cu_q[i]), k = static_cast<double>(cu_k[i + 1] - cu_k[i]);
    // Row r of q sees k - q + 1 + r keys; the first q - k rows of a document with more queries than keys see
    // none.
    pairs += q <= k ? q * (k - q) + q * (q + 1) / 2 : k * (k + 1) / 2;
  }
  return pairs;
}

DocLayout Workload::layout(int world) const {
  const LayoutOptions options{.world_size = world, .padding_tokens = padding};
  return square ? DocLayout::from_cu_seqlens(cu_q, options) : DocLayout::from_cu_seqlens(cu_q, cu_k, options);
}

Workload random_workload(std::uint64_t seed, int index, int world, std::int64_t max_tokens) {
  std::mt19937_64 engine(seed * 1000003 + static_cast<std::uint64_t>(index));
  const auto draw = [&](std::int64_t low,
                        std::int64_t high) {  // not std::uniform_int_distribution: same everywhere
    return low + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(high - low + 1));
  };
  const std::int64_t total = draw(std::max<std::int64_t>(1, max_tokens / 4), max_tokens);
  const std::vector<std::function<std::int64_t()>> kinds{
      [&] { return draw(0, 3) == 0 ? draw(1, total) : draw(1, 40); },
      [&] { return draw(1, 7); },
      [] { return std::int64_t{1}; },
      [&] { return total; },
      [&] { return std::int64_t{16} * draw(1, 3) * (std::int64_t{1} << draw(0, 3)) + draw(-1, 1); },
      [&] { return draw(0, 2) == 0 ? std::int64_t{0} : draw(1, 100); },
      [&] { return draw(total / 8 + 1, total / 2 + 1); },
  };
  constexpr std::size_t kZeroLengths = 5;
  const std::size_t kind = static_cast<std::size_t>(index) % (kinds.size() + 2);
  const std::string name = fmt::format("random/{}", index);
  const std::int64_t padding = draw(0, 1) == 0 ? 0 : draw(1, std::max<std::int64_t>(1, total / 3));
  std::vector<std::int64_t> lengths;
  if (kind < kinds.size() || world > 1) {
    for (std::int64_t left = total; left > 0;) {
      lengths.push_back(std::min(left, kinds[kind % kinds.size()]()));
      left -= lengths.back();
    }
    if (kind == kZeroLengths) {  // the draws above never end in one
      lengths.insert(lengths.begin(), 0);
      lengths.push_back(0);
    }
    return Workload::from_lengths(name, lengths, padding);
  }
  Workload workload;
  workload.name = name;
  workload.square = false;
  workload.padding = padding;
  const std::int64_t most = kind == kinds.size() ? std::max<std::int64_t>(1, total / 2) : 40;
  while (workload.cu_q.back() + workload.cu_k.back() < total) {
    const std::int64_t q = draw(0, 4) == 0 ? 0 : draw(1, most);
    const std::int64_t k = draw(0, 4) == 0 ? 0 : draw(0, 4) == 0 ? q : draw(1, most);
    workload.cu_q.push_back(workload.cu_q.back() + q);
    workload.cu_k.push_back(workload.cu_k.back() + k);
  }
  return workload;
}

double flops(const Workload& workload, const CallShape& shape, Direction direction) {
  const double d = shape.head_dim, dv = shape.dim_v();
  const double per_pair = direction == Direction::forward ? d + dv : 3 * d + 2 * dv;
  return 2 * shape.heads_q * per_pair * workload.area();
}

}  // namespace bdcp::bench
