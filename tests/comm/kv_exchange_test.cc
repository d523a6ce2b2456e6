// The three paths in host memory: the same remote rows, the same gradients, bit for bit.
#include "comm/kv_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/kv_layout.h"
#include "comm/kv_world.h"
#include "comm/rank_threads.h"
#include "support/expect_error.h"
#include "support/layouts.h"

namespace bdcp {
namespace {

using comm::KvExchange;
using test::HostTensor;
using test::KvWorld;
using test::Outcomes;
using Order = HostTensor::Order;

/// Aligned memory as a caller's workspace has it, filled so that rows nobody wrote show.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : memory_(bytes + 256, std::byte{0xa5}), bytes_(bytes) {
    void* data = memory_.data();
    std::size_t space = memory_.size();
    data_ = std::align(256, bytes, data, space);
  }
  BufferView view() { return {data_, bytes_}; }

 private:
  std::vector<std::byte> memory_;
  void* data_;
  std::size_t bytes_;
};

void run_forward(KvExchange& exchange, const KvWorld& world, int rank, Order order) {
  const HostTensor k = world.chunk(world.k, rank, order), v = world.chunk(world.v, rank, order);
  Workspace landing(exchange.landing_bytes());
  exchange.start_forward(k.view(), v.view(), landing.view(), Stream::host());
  exchange.finish_forward(Stream::host());
  EXPECT_TRUE(test::same_view(exchange.remote_k(landing.view()), world.remote(world.k, rank)));
  EXPECT_TRUE(test::same_view(exchange.remote_v(landing.view()), world.remote(world.v, rank)));
}

void run_reduce(KvExchange& exchange, const KvWorld& world, int rank, Order order) {
  const auto r = static_cast<std::size_t>(rank);
  Workspace gradients(exchange.gradient_bytes());
  const KvExchange::Partials partials = exchange.partials(gradients.view());
  test::copy_view(partials.shared_dk, world.shared(world.part_k[r], rank));
  test::copy_view(partials.shared_dv, world.shared(world.part_v[r], rank));
  test::copy_view(partials.remote_dk, world.outgoing(world.part_k[r], rank));
  test::copy_view(partials.remote_dv, world.outgoing(world.part_v[r], rank));
  const CallShape& shape = world.shape;
  HostTensor dk(shape.dtype, world.global.local_len, shape.heads_kv, shape.head_dim, order);
  HostTensor dv(shape.dtype, world.global.local_len, shape.heads_kv, shape.dim_v(), order);
  const HostTensor untouched_k = dk, untouched_v = dv;
  exchange.reduce(partials, gradients.view(), dk.view(), dv.view(), Stream::host());
  const std::int64_t begin = world.at(rank).shared_begin, end = world.global.local_len;
  EXPECT_TRUE(dk.same_bits(untouched_k, 0, begin));
  EXPECT_TRUE(dv.same_bits(untouched_v, 0, begin));
  const HostTensor want_k = world.expected(world.part_k, rank), want_v = world.expected(world.part_v, rank);
  for (std::int64_t t = begin; t < end; ++t)
    for (std::int64_t h = 0; h < shape.heads_kv; ++h) {
      for (std::int64_t d = 0; d < shape.head_dim; ++d) ASSERT_EQ(dk.at(t, h, d), want_k.at(t - begin, h, d));
      for (std::int64_t d = 0; d < shape.dim_v(); ++d) ASSERT_EQ(dv.at(t, h, d), want_v.at(t - begin, h, d));
    }
}

void run_all_paths(const KvWorld& world, Order order) {
  for (const ExchangePath path : world.paths()) {
    SCOPED_TRACE(std::string(to_string(path)));
    const Outcomes outcomes =
        test::run_ranks(Communicator::in_process(world.global.world), [&](Communicator& handle) {
          const int rank = handle.rank();
          KvExchange exchange(handle.group(), world.global, world.at(rank), world.shape, world.options(path));
          for (int layer = 0; layer < 2; ++layer) {
            run_forward(exchange, world, rank, order);
            run_reduce(exchange, world, rank, order);
          }
        });
    EXPECT_TRUE(test::all_well(outcomes)) << test::describe(outcomes);
  }
}

struct Element {
  DType dtype;
  bool payload_f32;
};
const Element kElements[] = {
    {DType::f32, true}, {DType::bf16, true}, {DType::f16, false}, {DType::bf16, false}};

TEST(KvExchange, PathsDeliverTheSameRowsAndSumsForRandomLayouts) {
  test::RandomLayouts random(11);
  for (int round = 0; round < 48; ++round) {
    const int world = 1 + round % 8;
    const test::LayoutCase layout = random.next(world, 40 * world, round % test::RandomLayouts::kKinds);
    SCOPED_TRACE(testing::PrintToString(layout));
    const Element& element = kElements[round % 4];
    CallShape shape;
    shape.heads_q = shape.heads_kv = 1 + round % 3;
    shape.head_dim = 5 + round % 4;
    shape.head_dim_v = 3;
    shape.dtype = element.dtype;
    const Order order = static_cast<Order>(round / 4 % 3);
    run_all_paths(KvWorld(layout.layout(), shape, element.payload_f32, static_cast<std::uint64_t>(round)),
                  order);
  }
}

CallShape small_shape() {
  CallShape shape;
  shape.heads_q = shape.heads_kv = 2;
  shape.head_dim = 4;
  shape.dtype = DType::bf16;
  return shape;
}

DocLayout layout_of(std::vector<std::int64_t> lengths, int world, std::int64_t padding = 0) {
  return DocLayout::from_lengths(lengths, {.world_size = world, .padding_tokens = padding});
}

TEST(KvExchange, AllPaddingRanksTakePart) {
  const KvWorld world(layout_of({20, 3}, 4, 41), small_shape(), true, 3);
  ASSERT_EQ(world.at(3).range.n_real, 0);
  ASSERT_FALSE(world.global.edges.empty());
  run_all_paths(world, Order::packed);
}

TEST(KvExchange, OneDocumentOverAllRanksSumsEveryLaterRank) {
  const KvWorld world(layout_of({64}, 8), small_shape(), true, 4);
  ASSERT_FALSE(world.global.halo.feasible);
  ASSERT_EQ(world.at(0).sends.size(), 7u);
  run_all_paths(world, Order::heads_first);
}

TEST(KvExchange, WhereNothingCrossesNobodyWaitsForAnybody) {
  const KvWorld world(layout_of({8, 8}, 2), small_shape(), true, 5);
  ASSERT_TRUE(world.global.edges.empty());
  for (const ExchangePath path : world.paths()) {
    SCOPED_TRACE(std::string(to_string(path)));
    const auto handles = Communicator::in_process(2);
    comm::KvExchangeOptions options = world.options(path);
    options.start_timeout_s = 1;
    KvExchange exchange(handles[0].group(), world.global, world.at(0), world.shape, options);
    EXPECT_FALSE(exchange.moves());
    run_forward(exchange, world, 0, Order::packed);  // rank 1 never comes
    run_reduce(exchange, world, 0, Order::packed);
  }
}

TEST(KvExchange, AWorldOfOneNeedsNoGroup) {
  const KvWorld world(layout_of({8, 9}, 1), small_shape(), true, 6);
  KvExchange exchange(nullptr, world.global, world.at(0), world.shape, world.options(ExchangePath::local));
  EXPECT_EQ(exchange.landing_bytes(), 0u);
  EXPECT_EQ(exchange.gradient_bytes(), 0u);
  run_forward(exchange, world, 0, Order::packed);
  run_reduce(exchange, world, 0, Order::packed);
}

TEST(KvExchange, LandsOnlyWhatItsPathNeeds) {
  const KvWorld world(layout_of({12, 52}, 4), small_shape(), false, 7);
  const auto handles = Communicator::in_process(4);
  const auto landing = [&](ExchangePath path, int rank) {
    return KvExchange(handles[static_cast<std::size_t>(rank)].group(), world.global, world.at(rank),
                      world.shape, world.options(path))
        .landing_bytes();
  };
  const std::size_t row = 2 * 4 * 2;
  EXPECT_EQ(landing(ExchangePath::allgather, 1), 2 * 64 * row);
  EXPECT_EQ(landing(ExchangePath::a2a, 0), 0u);
  EXPECT_EQ(landing(ExchangePath::a2a, 3), 2u * 768u);  // 36 rows, rounded up to 256 bytes
}

TEST(KvExchange, OwnTokensNeverTravelAndEdgesMatchOnBothSides) {
  test::RandomLayouts random(12);
  for (int round = 0; round < 40; ++round) {
    const int size = 2 + round % 7;
    const KvWorld world(random.next(size, 40 * size).layout(), small_shape(), true, 8);
    for (const ExchangePath path : {ExchangePath::a2a, ExchangePath::halo}) {
      if (path == ExchangePath::halo && !world.global.halo.feasible) continue;
      std::vector<std::vector<std::int64_t>> sent(static_cast<std::size_t>(size)),
          got(static_cast<std::size_t>(size));
      for (int rank = 0; rank < size; ++rank) {
        const auto layout = comm::make_kv_layout(world.global, world.at(rank), world.shape, path, true);
        std::int64_t landed = 0;
        for (const auto& edge : layout.sends) {
          EXPECT_GT(edge.peer, rank);
          EXPECT_GT(edge.count, 0);
          sent[static_cast<std::size_t>(edge.peer)].push_back(edge.count);
        }
        for (const auto& edge : layout.recvs) {
          EXPECT_LT(edge.peer, rank);
          EXPECT_EQ(edge.begin, landed);  // oldest token first, without gaps
          landed += edge.count;
          got[static_cast<std::size_t>(rank)].push_back(edge.count);
        }
        EXPECT_EQ(landed, world.at(rank).remote_len);
      }
      EXPECT_EQ(sent, got);
    }
  }
}

TEST(KvExchange, GatheringMoreThanPartialsBringBackIsTheLongerWay) {
  const auto longer = [](const std::vector<std::int64_t>& lengths, ExchangePath path, bool payload_f32,
                         int rank) {
    const KvWorld world(layout_of(lengths, 2), small_shape(), payload_f32, 10);
    return comm::make_kv_layout(world.global, world.at(rank), world.shape, path, payload_f32).fetch_is_longer;
  };
  for (const int rank : {0, 1}) {
    // 32 rows of bf16 come, 4 rows of f32 go back.
    EXPECT_TRUE(longer({28, 8, 28}, ExchangePath::allgather, true, rank));
    EXPECT_FALSE(longer({28, 8, 28}, ExchangePath::halo, true, rank));
    EXPECT_FALSE(longer({28, 8, 28}, ExchangePath::a2a, true, rank));
    EXPECT_FALSE(longer({64}, ExchangePath::allgather, true, rank));      // as many go back, of twice the size
    EXPECT_FALSE(longer({32, 32}, ExchangePath::allgather, true, rank));  // nothing moves
  }
}

TEST(KvExchange, RefusesPathsThatThePlanCannotTake) {
  const KvWorld world(layout_of({64}, 4), small_shape(), true, 9);
  const auto handles = Communicator::in_process(4);
  for (const ExchangePath path : {ExchangePath::halo, ExchangePath::automatic, ExchangePath::local})
    test::expect_error(ErrorCode::internal, {}, [&] {
      KvExchange(handles[1].group(), world.global, world.at(1), world.shape, world.options(path));
    });
}

TEST(KvExchange, NamesArgumentsThatDoNotFitBeforeAnybodyIsInvolved) {
  const KvWorld world(layout_of({64}, 2), small_shape(), true, 10);
  const auto handles = Communicator::in_process(2);
  KvExchange exchange(handles[1].group(), world.global, world.at(1), world.shape,
                      world.options(ExchangePath::a2a));
  HostTensor k = world.chunk(world.k, 1), v = world.chunk(world.v, 1), wrong(DType::f32, 32, 2, 4);
  Workspace landing(exchange.landing_bytes()), gradients(exchange.gradient_bytes());
  const BufferView small{landing.view().data, landing.view().bytes - 1};
  const auto code = ErrorCode::invalid_argument;
  test::expect_error(code, {"k is f32 [32, 2, 4]", "allowed is bf16 [32, 2, 4]"},
                     [&] { exchange.start_forward(wrong.view(), v.view(), landing.view(), Stream::host()); });
  test::expect_error(code, {"v is bf16 [31, 2, 4]"},
                     [&] { exchange.start_forward(k.view(), v.rows(0, 31), landing.view(), Stream::host()); });
  test::expect_error(code, {"landing has"},
                     [&] { exchange.start_forward(k.view(), v.view(), small, Stream::host()); });
  test::expect_error(code, {"stream belongs to device 0", "device -1"}, [&] {
    exchange.start_forward(k.view(), v.view(), landing.view(), Stream::cuda(nullptr, 0));
  });
  test::expect_error(code, {"gradients has 0 bytes"},
                     [&] { exchange.reduce({}, {}, k.view(), v.view(), Stream::host()); });
  handles[0].check();
}

TEST(KvExchange, AFailureBetweenCallsReachesPeersAtTheirNextCall) {
  const KvWorld world(layout_of({64}, 4), small_shape(), true, 13);
  const Outcomes outcomes = test::run_ranks(Communicator::in_process(4), [&](Communicator& handle) {
    const int rank = handle.rank();
    KvExchange exchange(handle.group(), world.global, world.at(rank), world.shape,
                        world.options(ExchangePath::a2a));
    run_forward(exchange, world, rank, Order::packed);
    if (rank == 2) handle.group()->fail(Error(ErrorCode::cuda_error, "the kernel failed"));
    run_forward(exchange, world, rank, Order::packed);
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank]->code(), rank == 2 ? ErrorCode::cuda_error : ErrorCode::peer_failed);
    EXPECT_EQ(outcomes[rank]->origin_rank(), 2);
    EXPECT_THAT(outcomes[rank]->message(), testing::HasSubstr("the kernel failed"));
  }
}

TEST(KvExchange, StridedMeansMoreThanContiguousCopies) {
  const HostTensor packed(DType::bf16, 4, 2, 8), padded(DType::bf16, 4, 2, 8, Order::padded);
  EXPECT_FALSE(KvExchange::strided(packed.view(), packed.view()));
  EXPECT_TRUE(KvExchange::strided(packed.view(), padded.view()));
  EXPECT_TRUE(KvExchange::strided(padded.view(), packed.view()));
}

}  // namespace
}  // namespace bdcp
