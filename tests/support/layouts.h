// Random document layouts for property tests. Needs only bdcp_plan; reproducible from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "bdcp/doc_layout.h"

namespace bdcp::test {

/// Lengths, trailing padding and world size, printable, so that a failing case can be repeated by hand.
struct LayoutCase {
  std::string kind;
  std::vector<std::int64_t> lengths;
  std::int64_t padding = 0;
  int world = 1;

  DocLayout layout() const {
    return DocLayout::from_lengths(lengths, {.world_size = world, .padding_tokens = padding});
  }
  std::int64_t real_tokens() const {
    std::int64_t sum = 0;
    for (std::int64_t length : lengths) sum += length;
    return sum;
  }
  std::int64_t tokens() const { return real_tokens() + padding; }
};

inline std::ostream& operator<<(std::ostream& out, const LayoutCase& layout) {
  out << layout.kind << ": world " << layout.world << ", padding " << layout.padding << ", lengths ";
  const std::size_t shown = std::min<std::size_t>(layout.lengths.size(), 64);
  for (std::size_t i = 0; i < shown; ++i) out << (i ? "," : "") << layout.lengths[i];
  if (shown < layout.lengths.size()) out << ",... (" << layout.lengths.size() << ")";
  return out;
}

/// Documents of one rectangular (world 1) layout.
struct RectangularCase {
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  std::int64_t padding = 0;

  DocLayout layout() const {
    return DocLayout::from_cu_seqlens(cu_q, cu_k, {.world_size = 1, .padding_tokens = padding});
  }
};

class RandomLayouts {
 public:
  explicit RandomLayouts(std::uint64_t seed) : engine_(seed) {}

  std::int64_t uniform(std::int64_t low, std::int64_t high) {  // both inclusive; the same on every machine
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

  static constexpr int kKinds = 8;

  /// The next case of a random kind with at most max_tokens (>= 16 * world) real tokens.
  LayoutCase next(int world, std::int64_t max_tokens) {
    return next(world, max_tokens, static_cast<int>(uniform(0, kKinds - 1)));
  }

  LayoutCase next(int world, std::int64_t max_tokens, int kind) {
    LayoutCase out;
    out.world = world;
    const std::int64_t total = uniform(std::max<std::int64_t>(2 * world, max_tokens / 4), max_tokens);
    switch (kind) {
      case 0:
        out.kind = "mixed";
        fill(out.lengths, total, [&] { return uniform(1, 4) == 1 ? uniform(1, total) : uniform(1, 24); });
        break;
      case 1:
        out.kind = "ones";
        out.lengths.assign(static_cast<std::size_t>(total), 1);
        break;
      case 2:
        out.kind = "one document over all ranks";
        out.lengths = {total};
        break;
      case 3:
        out.kind = "edges on chunk edges +-1";
        chunk_edges(out, total);
        break;
      case 4:
        out.kind = "zero lengths among others";
        fill(out.lengths, total, [&] { return uniform(0, 2) == 0 ? std::int64_t{0} : uniform(1, 40); });
        out.lengths.insert(out.lengths.begin(), 0);
        out.lengths.push_back(0);
        break;
      case 5:
        out.kind = "tile edges +-1";
        fill(out.lengths, total, [&] { return (std::int64_t{16} << uniform(0, 3)) + uniform(-1, 1); });
        break;
      case 6:
        out.kind = "short";
        fill(out.lengths, total, [&] { return uniform(1, 7); });
        break;
      default:
        out.kind = "mostly padding";
        fill(out.lengths, std::max<std::int64_t>(1, total / uniform(2, 8)), [&] { return uniform(1, 50); });
        out.padding = total - out.real_tokens();
        return out;
    }
    if (uniform(0, 2) == 0) out.padding = uniform(1, std::max<std::int64_t>(1, total / 2));
    return out;
  }

  /// Any q and k per document: q > k, q < k, either one zero.
  RectangularCase next_rectangular(std::int64_t max_documents, std::int64_t max_length) {
    RectangularCase out;
    const std::int64_t documents = uniform(1, max_documents);
    for (std::int64_t i = 0; i < documents; ++i) {
      std::int64_t q = uniform(0, max_length), k = uniform(0, max_length);
      switch (uniform(0, 7)) {
        case 0:
          q = 0;
          break;
        case 1:
          k = 0;
          break;
        case 2:
          k = q;
          break;
        default:
          break;
      }
      out.cu_q.push_back(out.cu_q.back() + q);
      out.cu_k.push_back(out.cu_k.back() + k);
    }
    if (uniform(0, 2) == 0) out.padding = uniform(1, 20);
    return out;
  }

 private:
  template <class Draw>
  static void fill(std::vector<std::int64_t>& lengths, std::int64_t total, Draw draw) {
    for (std::int64_t left = total; left > 0;) {
      lengths.push_back(std::min(left, draw()));
      left -= lengths.back();
    }
  }

  void chunk_edges(LayoutCase& out, std::int64_t total) {
    const std::int64_t unit = 2 * out.world;
    const std::int64_t tokens = (total + unit - 1) / unit * unit, chunk = tokens / out.world;
    std::vector<std::int64_t> cuts;
    for (int rank = 1; rank < out.world; ++rank) {
      if (uniform(0, 3) != 0) cuts.push_back(rank * chunk + uniform(-1, 1));
    }
    for (std::int64_t i = uniform(0, 3); i > 0; --i) cuts.push_back(uniform(1, tokens - 1));
    cuts.push_back(tokens);
    std::sort(cuts.begin(), cuts.end());
    std::int64_t last = 0;
    for (std::int64_t cut : cuts) {
      if (cut <= last) continue;
      out.lengths.push_back(cut - last);
      last = cut;
    }
  }

  std::mt19937_64 engine_;
};

}  // namespace bdcp::test
