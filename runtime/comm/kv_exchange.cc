#include "comm/kv_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"
#include "comm/kv_layout.h"
#include "comm/reduce_partials.h"
#include "comm/row_copy.h"

namespace bdcp::comm {
namespace {

std::byte* at(BufferView buffer, std::size_t offset) { return static_cast<std::byte*>(buffer.data) + offset; }

void require_bytes(const char* name, BufferView buffer, std::size_t bytes) {
  require(buffer.bytes >= bytes && (buffer.data || bytes == 0), ErrorCode::invalid_argument, [&] {
    return fmt::format("{} has {} bytes; needed are {}", name, buffer.data ? buffer.bytes : 0, bytes);
  });
}

void require_shape(const char* name, const ConstTensorView& tensor, std::int64_t tokens, int heads, int dim,
                   DType dtype) {
  require(tensor.tokens == tokens && tensor.heads == heads && tensor.dim == dim && tensor.dtype == dtype &&
              (tensor.data || tokens == 0),
          ErrorCode::invalid_argument, [&] {
            return fmt::format("{} is {} [{}, {}, {}]{}; allowed is {} [{}, {}, {}]", name,
                               to_string(tensor.dtype), tensor.tokens, tensor.heads, tensor.dim,
                               tensor.data ? "" : " without data", to_string(dtype), tokens, heads, dim);
          });
}

}  // namespace

struct KvExchange::Impl {
  Impl(std::shared_ptr<Group> members, const KvExchangeOptions& given, KvLayout rows)
      : group(std::move(members)), options(given), layout(std::move(rows)) {}

  std::shared_ptr<Group> group;
  KvExchangeOptions options;
  KvLayout layout;
  void* transfer_stream = nullptr;  // the group's
  device::OwnedEvent before, after;
  std::shared_ptr<const jit::CompiledKernel> compiled;
  std::shared_ptr<const device::LoadedKernel> loaded;
  // Lists of one call, kept so that a call allocates nothing; `busy` guards them.
  std::atomic<bool> busy = false;
  std::vector<TransferOp> sends, recvs;
  bool unjoined = false;                       // a transfer was started, and no stream waits for it yet
  std::optional<ExposureMeter::Events> timed;  // the transfer that is under way, unless nobody times it
  Direction within = Direction::forward;

  bool on_device() const { return options.device != nullptr; }
  void check_stream(Stream stream) const {
    const int expected = on_device() ? options.device->facts().ordinal : -1;
    require((stream.is_host() ? -1 : stream.device) == expected, ErrorCode::invalid_argument, [&] {
      return fmt::format("stream belongs to device {}; this exchange was prepared for device {} (-1: host)",
                         stream.device, expected);
    });
  }

  /// Runs body(lane) on the transfer stream, after the work that is on `stream` now.
  template <class Body>
  void transfer(Stream stream, Direction direction, Body&& body) {
    require(!busy.exchange(true, std::memory_order_acquire), ErrorCode::invalid_argument,
            "two threads run one rank's exchange at the same time; one at a time is allowed");
    struct Release {
      std::atomic<bool>& flag;
      ~Release() { flag.store(false, std::memory_order_release); }
    } release{busy};
    sends.clear();
    recvs.clear();
    within = direction;
    if (!on_device()) {
      const auto start = std::chrono::steady_clock::now();
      body(Lane{});
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (options.exposed) options.exposed->add(within, took.count());  // nothing runs meanwhile
      return;
    }
    device::Device& device = *options.device;
    begin_timing(device, stream);
    device.record(before.get(), stream.handle);
    device.wait(transfer_stream, before.get());
    Unfinished unfinished{*this, stream};
    body(Lane{Stream::cuda(transfer_stream, stream.device), &device});
    device.record(timed ? timed->arrived.get() : after.get(), transfer_stream);
    unfinished.open = false;
    unjoined = true;
  }
  /// What a transfer that fails has enqueued still touches the caller's buffers: later work on its stream must
  /// come after it, whatever was thrown.
  struct Unfinished {
    Impl& impl;
    Stream stream;
    bool open = true;
    ~Unfinished() {
      if (!open) return;
      try {
        impl.options.device->record(impl.after.get(), impl.transfer_stream);
        impl.options.device->wait(stream.handle, impl.after.get());
        impl.unjoined = false;
        if (impl.timed) impl.options.meter->give_back(std::move(*std::exchange(impl.timed, std::nullopt)));
      } catch (...) {  // the error that is on its way says more
      }
    }
  };
  /// Events of a capture do not come about: what is captured goes untimed.
  void begin_timing(device::Device& device, Stream stream) {
    if (timed)
      options.meter->give_back(std::move(*std::exchange(timed, std::nullopt)));  // nobody waited for it
    if (!options.meter || !options.exposed) return;
    if (!device.capturing(stream.handle)) timed = options.meter->take();
    if (!timed) options.exposed->miss();
  }
  void join(Stream stream) {
    if (!unjoined) return;  // also on the host, where it is complete
    device::Device& device = *options.device;
    if (timed) device.record(timed->ready.get(), stream.handle);
    device.wait(stream.handle, timed ? timed->arrived.get() : after.get());
    unjoined = false;
    if (timed) options.meter->add(std::move(*std::exchange(timed, std::nullopt)), within, options.exposed);
  }

  TensorView packed(BufferView buffer, std::size_t offset, DType dtype, std::int64_t rows, int dim) const {
    return TensorView::packed(buffer.data ? at(buffer, offset) : nullptr, dtype, rows, layout.heads, dim);
  }
  PartialSum sum_of(BufferView gradients, std::size_t own, std::size_t peers, std::size_t stride,
                    TensorView out) const {
    const std::int64_t skip =
        layout.shared_begin * out.token_stride * static_cast<std::int64_t>(size_of(out.dtype));
    out.data = static_cast<std::byte*>(out.data) + skip;
    out.tokens = layout.shared_rows;
    return {reinterpret_cast<const float*>(at(gradients, own)),
            at(gradients, peers),
            stride,
            layout.payload,
            static_cast<int>(layout.contributors.size()),
            out};
  }
  /// `own`, or a packed copy of the rows that are sent, where the group takes no others.
  StridedRows sendable(const StridedRows& own, BufferView landing, std::size_t packed_at, int dim,
                       const Lane& lane) const {
    if (layout.packed_rows == 0 || own.contiguous()) return own;
    StridedRows copy = rows_of(packed(landing, packed_at, layout.dtype, layout.packed_rows, dim));
    copy_on_device(*lane.device, lane.stream.handle, copy, own.slice(layout.packed_begin, layout.packed_rows));
    copy.data -= layout.packed_begin * copy.row_stride;
    copy.rows = own.rows;
    return copy;
  }
  TransferBounds bounds() const { return {options.start_timeout_s, options.timeout_s}; }
};

std::vector<jit::KernelSpec> required_kernels(DType dtype, bool payload_f32, const std::string& arch) {
  return {reduce_spec(dtype, payload_f32 ? DType::f32 : dtype, arch)};
}

KvExchange::KvExchange(const std::shared_ptr<Group>& group, const plan::GlobalPlan& global,
                       const plan::RankPlan& plan, const CallShape& shape, const KvExchangeOptions& options)
    : impl_(std::make_unique<Impl>(group, options,
                                   make_kv_layout(global, plan, shape, options.path, options.payload_f32,
                                                  group && group->contiguous_only(options.device.get())))) {
  Impl& impl = *impl_;
  const KvLayout& layout = impl.layout;
  require(
      impl.group ? impl.group->size() == global.world && impl.group->rank() == plan.rank : global.world == 1,
      ErrorCode::internal, "the exchange's group is not the plan's");
  const std::size_t most = 2 * std::max({layout.sends.size(), layout.recvs.size(), layout.returns.size(),
                                         layout.contributors.size()});
  impl.sends.reserve(most);
  impl.recvs.reserve(most);
  if (!impl.on_device() || !impl.group) return;
  impl.transfer_stream = impl.group->transfer_stream(options.device);
  impl.before = options.device->create_event();
  impl.after = options.device->create_event();
  if (!shape.backward || layout.shared_rows == 0) return;
  require(options.cache != nullptr, ErrorCode::internal, "a kernel cache is needed for the backward exchange");
  const jit::KernelSpec spec = reduce_spec(layout.dtype, layout.payload, options.device->facts().arch);
  impl.compiled = options.cache->get(spec);
  impl.loaded = options.cache->load(spec, options.device);
  impl.options.cache = nullptr;
}

KvExchange::~KvExchange() = default;

std::size_t KvExchange::landing_bytes() const { return impl_->layout.landing_bytes; }
std::size_t KvExchange::gradient_bytes() const { return impl_->layout.gradient_bytes; }

ConstTensorView KvExchange::remote_k(BufferView landing) const {
  const KvLayout& layout = impl_->layout;
  const std::size_t skip =
      static_cast<std::size_t>(layout.remote_begin * layout.row_elements_k()) * size_of(layout.dtype);
  return impl_->packed(landing, skip, layout.dtype, layout.remote_len, layout.dim_k);
}

ConstTensorView KvExchange::remote_v(BufferView landing) const {
  const KvLayout& layout = impl_->layout;
  const std::size_t skip =
      static_cast<std::size_t>(layout.remote_begin * layout.row_elements_v()) * size_of(layout.dtype);
  return impl_->packed(landing, layout.landing_v + skip, layout.dtype, layout.remote_len, layout.dim_v);
}

void KvExchange::start_forward(ConstTensorView k, ConstTensorView v, BufferView landing, Stream stream,
                               Direction within) {
  Impl& impl = *impl_;
  const KvLayout& layout = impl.layout;
  impl.check_stream(stream);
  require_shape("k", k, layout.key_rows, layout.heads, layout.dim_k, layout.dtype);
  require_shape("v", v, layout.key_rows, layout.heads, layout.dim_v, layout.dtype);
  require_bytes("landing", landing, layout.landing_bytes);
  if (!layout.moves) return;
  const StridedRows own_k = rows_of(k), own_v = rows_of(v);
  const StridedRows all_k = rows_of(impl.packed(landing, 0, layout.dtype, layout.landing_rows, layout.dim_k));
  const StridedRows all_v =
      rows_of(impl.packed(landing, layout.landing_v, layout.dtype, layout.landing_rows, layout.dim_v));
  impl.transfer(stream, within, [&](const Lane& lane) {
    if (layout.path == ExchangePath::allgather) {
      const GatherOp ops[] = {{own_k, all_k}, {own_v, all_v}};
      impl.group->all_gather(ops, lane, impl.bounds());
      return;
    }
    const StridedRows from_k = impl.sendable(own_k, landing, layout.packed_k, layout.dim_k, lane);
    const StridedRows from_v = impl.sendable(own_v, landing, layout.packed_v, layout.dim_v, lane);
    for (const EdgeRows& edge : layout.sends) {
      impl.sends.push_back({edge.peer, from_k.slice(edge.begin, edge.count)});
      impl.sends.push_back({edge.peer, from_v.slice(edge.begin, edge.count)});
    }
    for (const EdgeRows& edge : layout.recvs) {
      impl.recvs.push_back({edge.peer, all_k.slice(edge.begin, edge.count)});
      impl.recvs.push_back({edge.peer, all_v.slice(edge.begin, edge.count)});
    }
    impl.group->exchange(impl.sends, impl.recvs, lane, impl.bounds());
  });
}

void KvExchange::finish_forward(Stream stream) {
  impl_->check_stream(stream);
  if (impl_->layout.moves) impl_->join(stream);
}

KvExchange::Partials KvExchange::partials(BufferView gradients) const {
  const Impl& impl = *impl_;
  const KvLayout& layout = impl.layout;
  return {impl.packed(gradients, layout.shared_dk, DType::f32, layout.shared_rows, layout.dim_k),
          impl.packed(gradients, layout.shared_dv, DType::f32, layout.shared_rows, layout.dim_v),
          impl.packed(gradients, layout.remote_dk, layout.payload, layout.remote_len, layout.dim_k),
          impl.packed(gradients, layout.remote_dv, layout.payload, layout.remote_len, layout.dim_v)};
}

void KvExchange::start_reduce(const Partials& own, BufferView gradients, Stream stream) {
  Impl& impl = *impl_;
  const KvLayout& layout = impl.layout;
  impl.check_stream(stream);
  require_bytes("gradients", gradients, layout.gradient_bytes);
  if (!layout.moves) return;
  const StridedRows dk = rows_of(own.remote_dk), dv = rows_of(own.remote_dv);
  const StridedRows from_k =
      rows_of(impl.packed(gradients, layout.peers_dk, layout.payload, layout.shared_rows, layout.dim_k));
  const StridedRows from_v =
      rows_of(impl.packed(gradients, layout.peers_dv, layout.payload, layout.shared_rows, layout.dim_v));
  impl.transfer(stream, Direction::backward, [&](const Lane& lane) {
    for (const EdgeRows& edge : layout.returns) {
      impl.sends.push_back({edge.peer, dk.slice(edge.begin, edge.count)});
      impl.sends.push_back({edge.peer, dv.slice(edge.begin, edge.count)});
    }
    for (std::size_t c = 0; c < layout.contributors.size(); ++c) {
      impl.recvs.push_back({layout.contributors[c], from_k});
      impl.recvs.back().rows.data += c * layout.peers_dk_stride;
      impl.recvs.push_back({layout.contributors[c], from_v});
      impl.recvs.back().rows.data += c * layout.peers_dv_stride;
    }
    impl.group->exchange(impl.sends, impl.recvs, lane, impl.bounds());
  });
}

void KvExchange::finish_reduce(BufferView gradients, TensorView dk, TensorView dv, Stream stream) {
  Impl& impl = *impl_;
  const KvLayout& layout = impl.layout;
  impl.check_stream(stream);
  require_bytes("gradients", gradients, layout.gradient_bytes);
  require_shape("dk", dk, layout.key_rows, layout.heads, layout.dim_k, layout.dtype);
  require_shape("dv", dv, layout.key_rows, layout.heads, layout.dim_v, layout.dtype);
  if (!layout.moves) return;
  impl.join(stream);
  if (layout.shared_rows == 0) return;
  const PartialSum sum_k =
      impl.sum_of(gradients, layout.shared_dk, layout.peers_dk, layout.peers_dk_stride, dk);
  const PartialSum sum_v =
      impl.sum_of(gradients, layout.shared_dv, layout.peers_dv, layout.peers_dv_stride, dv);
  if (!impl.on_device()) {
    sum_on_host(sum_k);
    sum_on_host(sum_v);
    return;
  }
  require(impl.loaded != nullptr, ErrorCode::invalid_argument,
          "this exchange was prepared with CallShape::backward = false");
  sum_on_device(*impl.options.device, *impl.loaded, sum_k, sum_v, stream.handle);
}

void KvExchange::reduce(const Partials& own, BufferView gradients, TensorView dk, TensorView dv,
                        Stream stream) {
  start_reduce(own, gradients, stream);
  finish_reduce(gradients, dk, dv, stream);
}

bool KvExchange::moves() const { return impl_->layout.moves; }

bool KvExchange::fetch_is_longer() const { return impl_->layout.fetch_is_longer; }

bool KvExchange::strided(ConstTensorView k, ConstTensorView v) { return !k.contiguous() || !v.contiguous(); }

std::vector<std::shared_ptr<const jit::CompiledKernel>> KvExchange::kernels() const {
  if (!impl_->compiled) return {};
  return {impl_->compiled};
}

}  // namespace bdcp::comm
