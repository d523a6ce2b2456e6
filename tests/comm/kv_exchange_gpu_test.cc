// The three paths between in-process ranks on one GPU: the bits of the host's exchange, without
// synchronisation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/kv_exchange.h"
#include "comm/kv_world.h"
#include "comm/rank_threads.h"
#include "support/device_tensor.h"
#include "support/layouts.h"

namespace bdcp {
namespace {

using comm::KvExchange;
using test::DeviceTensor;
using test::HostTensor;
using test::KvWorld;
using test::Outcomes;
using Order = HostTensor::Order;

HostTensor fetch(device::Device& device, ConstTensorView view) {
  HostTensor out(view.dtype, view.tokens, view.heads, view.dim);
  const auto bytes = static_cast<std::size_t>(view.tokens * view.heads * view.dim) * size_of(view.dtype);
  if (bytes > 0) device.download(out.data(), view.data, bytes);
  return out;
}

class KvExchangeGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    driver_ = device::Driver::open(Env::from_process(), &why);
    if (!driver_) GTEST_SKIP() << why;
    device_ = driver_->device(0);
    jit::CacheOptions in_memory;
    in_memory.cache_dir = "";
    cache_ = std::make_unique<jit::KernelCache>(in_memory, Env::from_process(),
                                                std::make_shared<Log>(Log::Level::error));
    if (why = cache_->why_no_compiler(); !why.empty()) GTEST_SKIP() << why;
  }

  KvExchange make(const KvWorld& world, const Communicator& handle, ExchangePath path) {
    comm::KvExchangeOptions options = world.options(path);
    options.device = device_;
    options.cache = cache_.get();
    return KvExchange(handle.group(), world.global, world.at(handle.rank()), world.shape, options);
  }
  device::Buffer workspace(std::size_t bytes) {
    device::Buffer buffer = device_->allocate(std::max<std::size_t>(bytes, 1));
    device_->fill_async(buffer.get(), 0xa5, std::max<std::size_t>(bytes, 1), nullptr);
    device_->synchronize(nullptr);
    return buffer;
  }

  /// Several layers in flight, with sources that are overwritten on the stream right after each call.
  void run_forward(KvExchange& exchange, const KvWorld& world, int rank, Order order, Stream stream) {
    constexpr int kLayers = 3;
    DeviceTensor k(*device_, world.chunk(world.k, rank, order)), v(*device_, world.chunk(world.v, rank, order));
    DeviceTensor spare_k(*device_, world.chunk(world.k, rank, order));
    DeviceTensor spare_v(*device_, world.chunk(world.v, rank, order));
    const auto overwrite_and_restore = [&](DeviceTensor& tensor, DeviceTensor& spare) {
      device_->fill_async(tensor.memory(), 0xff, tensor.bytes(), stream.handle);
      device_->copy_async(tensor.memory(), spare.memory(), tensor.bytes(), stream.handle);
    };
    std::vector<device::Buffer> landings;
    for (int layer = 0; layer < kLayers; ++layer) landings.push_back(workspace(exchange.landing_bytes()));
    for (const device::Buffer& memory : landings) {
      exchange.start_forward(k.view(), v.view(), {memory.get(), exchange.landing_bytes()}, stream);
      exchange.finish_forward(stream);
      overwrite_and_restore(k, spare_k);
      overwrite_and_restore(v, spare_v);
    }
    device_->synchronize(stream.handle);
    for (const device::Buffer& memory : landings) {
      const BufferView landing{memory.get(), exchange.landing_bytes()};
      EXPECT_TRUE(
          test::same_view(fetch(*device_, exchange.remote_k(landing)).view(), world.remote(world.k, rank)));
      EXPECT_TRUE(
          test::same_view(fetch(*device_, exchange.remote_v(landing)).view(), world.remote(world.v, rank)));
    }
  }

  void put(TensorView to, const HostTensor& from) {
    const auto bytes = static_cast<std::size_t>(to.tokens * to.heads * to.dim) * size_of(to.dtype);
    if (bytes > 0) device_->upload(to.data, from.view().data, bytes);
  }

  void run_reduce(KvExchange& exchange, const KvWorld& world, int rank, Order order, Stream stream) {
    const auto r = static_cast<std::size_t>(rank);
    const device::Buffer memory = workspace(exchange.gradient_bytes());
    const BufferView gradients{memory.get(), exchange.gradient_bytes()};
    const KvExchange::Partials partials = exchange.partials(gradients);
    put(partials.shared_dk, world.shared(world.part_k[r], rank));
    put(partials.shared_dv, world.shared(world.part_v[r], rank));
    put(partials.remote_dk, world.outgoing(world.part_k[r], rank));
    put(partials.remote_dv, world.outgoing(world.part_v[r], rank));
    const CallShape& shape = world.shape;
    const std::int64_t rows = world.global.local_len, begin = world.at(rank).shared_begin;
    HostTensor blank_k(shape.dtype, rows, shape.heads_kv, shape.head_dim, order);
    HostTensor blank_v(shape.dtype, rows, shape.heads_kv, shape.dim_v(), order);
    DeviceTensor dk(*device_, blank_k), dv(*device_, blank_v);
    exchange.reduce(partials, gradients, dk.view(), dv.view(), stream);
    device_->synchronize(stream.handle);
    HostTensor want_k = blank_k, want_v = blank_v;
    place(world.expected(world.part_k, rank), begin, want_k);
    place(world.expected(world.part_v, rank), begin, want_v);
    EXPECT_EQ(dk.download().bytes(), want_k.bytes());  // gaps and earlier rows untouched
    EXPECT_EQ(dv.download().bytes(), want_v.bytes());
  }
  static void place(const HostTensor& rows, std::int64_t begin, HostTensor& out) {
    for (std::int64_t t = 0; t < rows.tokens(); ++t)
      for (std::int64_t h = 0; h < rows.heads(); ++h)
        for (std::int64_t d = 0; d < rows.dim(); ++d) out.set(begin + t, h, d, rows.at(t, h, d));
  }

  void run_all_paths(const KvWorld& world, Order order) {
    for (const ExchangePath path : world.paths()) {
      SCOPED_TRACE(std::string(to_string(path)));
      const Outcomes outcomes =
          test::run_ranks(Communicator::in_process(world.global.world), [&](Communicator& handle) {
            const device::OwnedStream own = device_->create_stream();
            const Stream stream = Stream::cuda(own.get(), 0);
            KvExchange exchange = make(world, handle, path);
            for (int repeat = 0; repeat < 2; ++repeat) {
              run_forward(exchange, world, handle.rank(), order, stream);
              run_reduce(exchange, world, handle.rank(), order, stream);
            }
          });
      EXPECT_TRUE(test::all_well(outcomes)) << test::describe(outcomes);
    }
  }

  std::shared_ptr<const device::Driver> driver_;
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<jit::KernelCache> cache_;
};

CallShape shape_of(DType dtype, int heads, int dim, int dim_v) {
  CallShape shape;
  shape.heads_q = shape.heads_kv = heads;
  shape.head_dim = dim;
  shape.head_dim_v = dim_v;
  shape.dtype = dtype;
  return shape;
}

TEST_F(KvExchangeGpu, PathsGiveTheHostsBitsForRandomLayouts) {
  test::RandomLayouts random(21);
  const DType dtypes[] = {DType::bf16, DType::f16, DType::f32};
  for (int round = 0; round < 12; ++round) {
    const test::LayoutCase layout = random.next(4, 400, round % test::RandomLayouts::kKinds);
    SCOPED_TRACE(testing::PrintToString(layout));
    // Head dims with and without groups of four elements.
    const CallShape shape = shape_of(dtypes[round % 3], 1 + round % 3, round % 2 ? 8 : 7, round % 4 ? 12 : 5);
    const KvWorld world(layout.layout(), shape, round % 4 < 2, static_cast<std::uint64_t>(round));
    run_all_paths(world, static_cast<Order>(round / 2 % 3));
  }
}

TEST_F(KvExchangeGpu, OneLongDocumentOverEightRanks) {
  const std::int64_t tokens[] = {8 * 1024};
  const DocLayout layout = DocLayout::from_lengths(std::span<const std::int64_t>(tokens), {.world_size = 8});
  run_all_paths(KvWorld(layout, shape_of(DType::bf16, 4, 32, 32), true, 22), Order::packed);
}

TEST_F(KvExchangeGpu, HostAndDeviceRanksInOneCallAreADivergence) {
  const Outcomes outcomes = test::run_ranks(Communicator::in_process(3), [&](Communicator& handle) {
    const comm::Lane device{Stream::cuda(nullptr, 0), device_.get()};
    handle.group()->exchange({}, {}, handle.rank() == 1 ? device : comm::Lane{}, {});
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->code(), ErrorCode::divergence);
    EXPECT_THAT(outcome->message(), testing::HasSubstr("rank 1 in exchange in device memory"));
  }
}

TEST_F(KvExchangeGpu, AFailureInsideALayerEndsAllRanks) {
  const std::int64_t tokens[] = {256};
  const DocLayout layout = DocLayout::from_lengths(std::span<const std::int64_t>(tokens), {.world_size = 4});
  const KvWorld world(layout, shape_of(DType::f32, 2, 8, 8), true, 23);
  const Outcomes outcomes = test::run_ranks(Communicator::in_process(4), [&](Communicator& handle) {
    const device::OwnedStream own = device_->create_stream();
    KvExchange exchange = make(world, handle, ExchangePath::a2a);
    run_forward(exchange, world, handle.rank(), Order::packed, Stream::cuda(own.get(), 0));
    if (handle.rank() == 3) handle.group()->fail(Error(ErrorCode::cuda_error, "the launch failed"));
    run_forward(exchange, world, handle.rank(), Order::packed, Stream::cuda(own.get(), 0));
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->origin_rank(), 3);
  }
}

}  // namespace
}  // namespace bdcp
