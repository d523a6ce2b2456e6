#include "bdcp/doc_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "support/expect_error.h"
#include "support/layouts.h"

namespace bdcp {
namespace {

using Ints = std::vector<std::int64_t>;
using Ints32 = std::vector<std::int32_t>;
using test::expect_error;

Ints to_ints(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }
std::span<const std::int64_t> as_span(const Ints& values) { return values; }
std::span<const std::int32_t> as_span(const Ints32& values) { return values; }

DocLayout lengths(const Ints& values, LayoutOptions options = {}) {
  return DocLayout::from_lengths(as_span(values), options);
}
DocLayout ids(const Ints& values, LayoutOptions options = {}) {
  return DocLayout::from_doc_ids(as_span(values), options);
}
DocLayout cu(const Ints& values, LayoutOptions options = {}) {
  return DocLayout::from_cu_seqlens(as_span(values), options);
}
DocLayout rectangular(const Ints& q, const Ints& k, LayoutOptions options = {}) {
  return DocLayout::from_cu_seqlens(as_span(q), as_span(k), options);
}

TEST(DocLayout, LengthsPadToTwiceTheWorld) {
  const DocLayout layout = lengths({3, 0, 4}, {.world_size = 2, .padding_tokens = 2});
  EXPECT_EQ(to_ints(layout.cu_q()), (Ints{0, 3, 7}));
  EXPECT_EQ(to_ints(layout.cu_k()), (Ints{0, 3, 7}));
  EXPECT_TRUE(layout.square());
  EXPECT_EQ(layout.documents(), 2);
  EXPECT_EQ(layout.real_tokens(), 7);
  EXPECT_EQ(layout.tokens(), 9);
  EXPECT_EQ(layout.padded_tokens(), 12);
  EXPECT_EQ(layout.local_tokens(), 6);
  EXPECT_EQ(layout.packed_cu_seqlens(), (Ints{0, 3, 7, 12}));
  EXPECT_EQ(layout.doc_ids(), (Ints{1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0}));
}

TEST(DocLayout, WorldOneAddsNoPadding) {
  const DocLayout layout = lengths({3, 4}, {.world_size = 1, .padding_tokens = 2});
  EXPECT_EQ(layout.padded_tokens(), 9);
  EXPECT_EQ(layout.local_tokens(), 9);
}

TEST(DocLayout, EveryFactoryAgrees) {
  const LayoutOptions options{.world_size = 3, .padding_tokens = 1};
  const DocLayout expect = lengths({2, 3}, options);
  const std::vector<DocLayout> same = {
      DocLayout::from_lengths(as_span(Ints32{2, 3}), options),
      lengths({0, 2, 0, 0, 3, 0}, options),
      cu({0, 2, 5}, options),
      cu({0, 0, 2, 2, 5, 5}, options),
      DocLayout::from_cu_seqlens(as_span(Ints32{0, 2, 5}), options),
      rectangular({0, 2, 5}, {0, 2, 5}, options),
      DocLayout::from_cu_seqlens(as_span(Ints32{0, 2, 5}), as_span(Ints32{0, 2, 5}), options),
      ids({7, 7, 4, 4, 4}, options),
      ids({7, 7, 4, 4, 4, 0}, {.world_size = 3}),
      DocLayout::from_doc_ids(as_span(Ints32{1, 1, 2, 2, 2}), options),
  };
  for (const DocLayout& layout : same) {
    EXPECT_EQ(to_ints(layout.cu_q()), (Ints{0, 2, 5}));
    EXPECT_EQ(layout.tokens(), 6);
    EXPECT_EQ(layout.hash(), expect.hash());
  }
}

TEST(DocLayout, HashSeesEveryField) {
  std::set<std::uint64_t> hashes;
  const std::vector<DocLayout> different = {
      lengths({2, 3}),
      lengths({3, 2}),
      lengths({5}),
      lengths({2, 3}, {.world_size = 1, .padding_tokens = 1}),
      lengths({2, 3}, {.world_size = 2}),
      lengths({2, 3}, {.world_size = 2, .padding_tokens = 1}),
      rectangular({0, 2, 5}, {0, 2, 6}),
      rectangular({0, 2, 6}, {0, 2, 5}),
      lengths({}),
  };
  for (const DocLayout& layout : different) hashes.insert(layout.hash());
  EXPECT_EQ(hashes.size(), different.size());
}

TEST(DocLayout, EmptyAndAllPadding) {
  for (const DocLayout& layout : {lengths({}), lengths({0, 0}), cu({0}), cu({0, 0, 0}), ids({})}) {
    EXPECT_EQ(layout.documents(), 0);
    EXPECT_EQ(layout.padded_tokens(), 0);
    EXPECT_EQ(layout.packed_cu_seqlens(), (Ints{0}));
  }
  const DocLayout padding = ids({0, 0, 0}, {.world_size = 2});
  EXPECT_EQ(padding.documents(), 0);
  EXPECT_EQ(padding.tokens(), 3);
  EXPECT_EQ(padding.packed_cu_seqlens(), (Ints{0, 4}));
}

TEST(DocLayout, Rectangular) {
  const DocLayout layout =
      rectangular({0, 2, 2, 2, 5}, {0, 4, 4, 7, 7}, {.world_size = 1, .padding_tokens = 3});
  EXPECT_FALSE(layout.square());
  EXPECT_EQ(layout.documents(), 3);  // the one without queries and keys is gone
  EXPECT_EQ(to_ints(layout.cu_q()), (Ints{0, 2, 2, 5}));
  EXPECT_EQ(to_ints(layout.cu_k()), (Ints{0, 4, 7, 7}));
  EXPECT_EQ(layout.tokens(), 8);
  EXPECT_EQ(layout.key_tokens(), 10);
  EXPECT_EQ(layout.packed_cu_seqlens(), (Ints{0, 2, 5, 8}));
  expect_error(ErrorCode::unsupported, {"rectangular"}, [&] { layout.doc_ids(); });
  expect_error(ErrorCode::unsupported, {"rectangular", "world_size is 2"}, [] {
    rectangular({0, 2}, {0, 3}, {.world_size = 2});
  });
}

TEST(DocLayout, LengthsErrors) {
  expect_error(ErrorCode::invalid_layout, {"lengths[2] is -5", "0 or more"}, [] { lengths({1, 2, -5}); });
  expect_error(ErrorCode::invalid_layout, {"lengths[1] is 2147483647", "at most 2147483647"}, [] {
    lengths({1, 2147483647});
  });
  expect_error(ErrorCode::invalid_layout, {"lengths[0]", "at most 2147483647"},
               [] { lengths({std::numeric_limits<std::int64_t>::max()}); });
  EXPECT_EQ(lengths({2147483647}).tokens(), 2147483647);
  expect_error(ErrorCode::invalid_layout, {"padding_tokens is -1"},
               [] { lengths({1}, {.padding_tokens = -1}); });
  expect_error(ErrorCode::invalid_layout, {"padding_tokens is 9223372036854775807"},
               [] { lengths({1}, {.padding_tokens = std::numeric_limits<std::int64_t>::max()}); });
  expect_error(ErrorCode::invalid_layout, {"padded to a multiple", "2147483648"},
               [] { lengths({2147483647}, {.world_size = 2}); });
  expect_error(ErrorCode::invalid_layout, {"world_size is 0", "1 to 8192"},
               [] { lengths({1}, {.world_size = 0}); });
  expect_error(ErrorCode::invalid_layout, {"world_size is 8193"}, [] { lengths({1}, {.world_size = 8193}); });
}

TEST(DocLayout, OffsetErrors) {
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens is empty"}, [] { cu(Ints{}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens[0] is 1", "allowed: 0"}, [] { cu({1, 2}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens[2] is 3", "cu_seqlens[1] = 5"}, [] { cu({0, 5, 3}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens[1] is 2147483648"}, [] { cu({0, 2147483648}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens_k[0] is 2"}, [] { rectangular({0, 5}, {2, 5}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens_q[2] is 4"}, [] { rectangular({0, 5, 4}, {0, 5, 6}); });
  expect_error(ErrorCode::invalid_layout, {"cu_seqlens_k has 3", "cu_seqlens_q has 2"}, [] {
    rectangular({0, 5}, {0, 5, 6});
  });
}

TEST(DocLayout, DocIdErrors) {
  expect_error(ErrorCode::invalid_layout, {"doc_ids[1] is 0", "doc_ids[2] is 2", "interior padding"}, [] {
    ids({1, 0, 2, 0});
  });
  expect_error(ErrorCode::invalid_layout, {"doc_ids[0] is 0", "doc_ids[2] is 1", "leading padding"}, [] {
    ids({0, 0, 1, 1});
  });
  expect_error(ErrorCode::invalid_layout, {"doc_ids[3] is 1", "already ended"}, [] { ids({1, 2, 2, 1}); });
  expect_error(ErrorCode::invalid_layout, {"doc_ids[4] is 5", "already ended"}, [] { ids({5, 9, 3, 8, 5}); });
  expect_error(ErrorCode::invalid_layout, {"doc_ids[2] is -3"}, [] { ids({1, 1, -3}); });
  expect_error(ErrorCode::invalid_layout, {"padding_tokens is -1"}, [] {
    ids({1, 0}, {.padding_tokens = -1});
  });
}

TEST(DocLayout, RandomIdsRoundTrip) {
  test::RandomLayouts random(11);
  for (int i = 0; i < 200; ++i) {
    const test::LayoutCase one = random.next(static_cast<int>(random.uniform(1, 5)), 300);
    const DocLayout layout = one.layout();
    Ints one_id = layout.doc_ids();
    EXPECT_EQ(static_cast<std::int64_t>(one_id.size()), layout.padded_tokens()) << one;
    one_id.resize(static_cast<std::size_t>(layout.tokens()));
    EXPECT_EQ(ids(one_id, {.world_size = one.world}).hash(), layout.hash()) << one;
    // Names of documents do not matter, only where they change.
    for (std::int64_t& id : one_id) id = id == 0 ? 0 : 1000 - id;
    EXPECT_EQ(ids(one_id, {.world_size = one.world}).hash(), layout.hash()) << one;
  }
}

}  // namespace
}  // namespace bdcp
