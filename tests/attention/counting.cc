#include "attention/counting.h"

#include <algorithm>
#include <cmath>

namespace bdcp::test {
namespace {

struct Document {
  std::int64_t q, q_end, k, k_end;
  std::int64_t rows() const { return q_end - q; }
  std::int64_t keys() const { return k_end - k; }
  /// Keys that row i sees, and the first row that sees key j.
  std::int64_t visible(std::int64_t i) const {
    return std::clamp<std::int64_t>(i + 1 + keys() - rows(), 0, keys());
  }
  std::int64_t first_row(std::int64_t j) const { return std::max<std::int64_t>(0, j - (keys() - rows())); }
};

std::vector<Document> documents(const RaggedLayout& l) {
  std::vector<Document> all;
  for (std::size_t i = 0; i + 1 < l.cu_q.size(); ++i)
    all.push_back({l.cu_q[i], l.cu_q[i + 1], l.cu_k[i], l.cu_k[i + 1]});
  return all;
}

double place(std::int64_t index) { return static_cast<double>(index % 4); }

}  // namespace

std::vector<CoveringCase> counting_cases(CallShape shape) {
  shape.scale = 1.0;
  std::vector<RaggedLayout> layouts = tricky_layouts();
  for (const std::int64_t edge : {16, 32, 48, 64, 96, 112, 128, 192, 256})
    for (const std::int64_t off : {-1, 0, 1})
      layouts.push_back(from_lengths({edge + off, 5, edge - off, 1, edge}, edge % 3, "edge"));
  for (int i = 0; i < 24; ++i) layouts.push_back(random_layout(static_cast<std::uint64_t>(700 + i), 500));
  std::vector<CoveringCase> cases;
  for (std::size_t i = 0; i < layouts.size(); ++i)
    for (const std::int64_t remote : {0, 1, 70, 128}) {
      const RaggedLayout& l = layouts[i];
      CoveringCase one;
      one.c.shape = shape;
      if (remote > 0) {  // what a rank in the middle has
        if (!l.square() || l.cu_q.size() < 2 || l.cu_q[1] == 0 || (i + static_cast<std::size_t>(remote)) % 2)
          continue;
        std::vector<std::int64_t> q, k;
        for (const Document& d : documents(l)) q.push_back(d.rows());
        k = q;
        k.front() += remote;
        one.c.layout = from_lengths(q, k, 0, 0, l.name);
        one.remote_len = remote;
        one.shared_keys = std::min(k.back(), one.c.layout.cu_k.back() - remote);
      } else {
        one.c.layout = l;
      }
      one.options.payload_f32 = remote != 70;
      one.options.batch_invariant = i % 5 == 4;
      one.name = one.c.layout.name + " remote " + std::to_string(remote) + " lengths";
      for (const Document& d : documents(one.c.layout))
        one.name += " " + std::to_string(d.rows()) + "/" + std::to_string(d.keys());
      cases.push_back(std::move(one));
    }
  return cases;
}

Data counting_data(const CoveringCase& one) {
  const RaggedLayout& l = one.c.layout;
  const CallShape& s = one.c.shape;
  Data data{{s.dtype, l.rows(), s.heads_q, s.head_dim, one.c.order},
            {s.dtype, l.key_rows(), s.heads_kv, s.head_dim, one.c.order},
            {s.dtype, l.key_rows(), s.heads_kv, s.dim_v(), one.c.order},
            {s.dtype, l.rows(), s.heads_q, s.dim_v(), one.c.order}};
  for (HostTensor* x : {&data.q, &data.k, &data.v, &data.dout}) x->fill_bytes(0);
  for (HostTensor* x : {&data.q, &data.dout}) x->poison(l.cu_q.back(), l.rows());
  for (HostTensor* x : {&data.k, &data.v}) x->poison(l.cu_k.back(), l.key_rows());
  for (const Document& d : documents(l)) {
    for (std::int64_t i = 0; i < d.rows(); ++i)
      for (std::int64_t h = 0; h < data.q.heads(); ++h) {
        data.q.set(d.q + i, h, 1, 1);  // dims that K leaves zero
        data.q.set(d.q + i, h, 3, place(i));
        data.dout.set(d.q + i, h, 0, static_cast<double>(d.visible(i)));  // so that dS is 1
      }
    for (std::int64_t j = 0; j < d.keys(); ++j)
      for (std::int64_t h = 0; h < data.k.heads(); ++h) {
        data.k.set(d.k + j, h, 0, 1);
        data.k.set(d.k + j, h, 2, place(j));
        data.v.set(d.k + j, h, 0, 1);
        data.v.set(d.k + j, h, 1, place(j));
      }
  }
  return data;
}

void expect_counts(const CoveringCase& one, const Outputs& o) {
  SCOPED_TRACE(one.name + " " + describe(one.c));
  const CallShape& s = one.c.shape;
  const std::int64_t rows = one.c.layout.rows(), ratio = s.heads_q / s.heads_kv;
  for (const Document& d : documents(one.c.layout)) {
    double places = 0;  // of the keys that the row sees
    for (std::int64_t i = 0, seen = 0; i < d.rows(); ++i) {
      const std::int64_t n = d.visible(i), t = d.q + i;
      for (; seen < n; ++seen) places += place(seen);
      const double count = static_cast<double>(n);
      for (std::int64_t h = 0; h < s.heads_q; ++h) {
        const auto what = [&] { return testing::Message() << "row " << t << " head " << h << " sees " << n; };
        const double lse = o.lse.data[static_cast<std::size_t>(h * rows + t)];
        ASSERT_NEAR(std::exp(lse), count, 0.1) << what();
        ASSERT_NEAR(o.out.at(t, h, 0), n > 0 ? 1 : 0, 1e-3) << what();
        ASSERT_NEAR(o.out.at(t, h, 1), n > 0 ? places / count : 0, 4e-3) << what();
        if (n == 1 && o.dq.at(t, h, 0) == 0) continue;
        // P may be rounded to 16 bits before dS is formed from it; a key too many or too few is 1 or more.
        ASSERT_NEAR(o.dq.at(t, h, 0), count, 0.4 + count / 2048) << what();
        ASSERT_NEAR(o.dq.at(t, h, 2), places, 0.4 + places / 2048) << what();
      }
    }
    for (std::int64_t j = 0; j < d.keys(); ++j) {
      double count = 0, row_places = 0, single = 0, single_places = 0;  // single: rows that see this key only
      for (std::int64_t i = d.first_row(j); i < d.rows(); ++i) {
        count += 1;
        row_places += place(i);
        single += d.visible(i) == 1;
        single_places += d.visible(i) == 1 ? place(i) : 0;
      }
      const double r = static_cast<double>(ratio);
      for (std::int64_t h = 0; h < s.heads_kv; ++h) {
        const auto what = [&] { return testing::Message() << "key " << d.k + j << " head " << h; };
        const double dk = o.dk.at(d.k + j, h, 1), dk_places = o.dk.at(d.k + j, h, 3);
        ASSERT_LE(dk, r * count + 0.4) << what();
        ASSERT_GE(dk, r * (count - single) - 0.4) << what();
        // Either all of the single rows count or none.
        const bool with = single == 0 || dk > r * (count - single) + 0.4;
        ASSERT_NEAR(dk, r * (count - (with ? 0 : single)), 0.4) << what();
        ASSERT_NEAR(dk_places, r * (row_places - (with ? 0 : single_places)), 0.4) << what();
        // P is rounded, dK's dS = 1 is not.
        ASSERT_NEAR(o.dv.at(d.k + j, h, 0), r * count, 0.1 + r * count / 1500) << what();
      }
    }
  }
}

}  // namespace bdcp::test
