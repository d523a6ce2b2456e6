#include "bench/session.h"

#include <algorithm>
#include <cstring>

namespace bdcp::bench {
Session::Session(const Runtime& runtime, const DocLayout& layout, const CallShape& shape, const Place& place,
                 const Team& team)
    : runtime_(runtime), layout_(layout), shape_(shape), place_(place), team_(team) {
  rows_ = layout_.local_tokens();
  key_rows_ = layout_.world_size() > 1 ? layout_.local_tokens() : layout_.key_tokens();
  ranks_ = std::vector<Rank>(static_cast<std::size_t>(team_.locals()));
  team_.run([&](int index, const Team::Barrier&) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    rank.step = begin(index);
    allocate(rank);
  });
}

Step Session::begin(int local) const {
  StepOptions options;
  options.device = place_.device;
  return runtime_.begin_step(layout_, shape_, team_.comm(local), options);
}

void Session::allocate(Rank& rank) {
  const Memory& memory = place_.memory;
  if (!memory.host()) {
    rank.owned_stream = memory.device().create_stream();
    rank.stream = Stream::cuda(rank.owned_stream.get(), place_.device);
  }
  const auto bytes = [&](std::int64_t rows, int heads, int dim) {
    return static_cast<std::size_t>(rows * heads * dim) * size_of(shape_.dtype);
  };
  rank.q = memory.allocate(bytes(rows_, shape_.heads_q, shape_.head_dim));
  rank.k = memory.allocate(bytes(key_rows_, shape_.heads_kv, shape_.head_dim));
  rank.v = memory.allocate(bytes(key_rows_, shape_.heads_kv, shape_.dim_v()));
  rank.out = memory.allocate(bytes(rows_, shape_.heads_q, shape_.dim_v()));
  rank.lse = memory.allocate(static_cast<std::size_t>(rows_ * shape_.heads_q) * sizeof(float));
  const WorkspaceSizes sizes = rank.step->workspace();
  rank.workspace = memory.allocate(std::max(sizes.forward, sizes.backward));
  rank.kept = memory.allocate(sizes.kept_kv);
  if (!shape_.backward) return;
  rank.dout = memory.allocate(rank.out.bytes());
  rank.dq = memory.allocate(rank.q.bytes());
  rank.dk = memory.allocate(rank.k.bytes());
  rank.dv = memory.allocate(rank.v.bytes());
}

void Session::upload(const Inputs& inputs) {
  const auto part = [&](const std::vector<std::byte>& whole, const Block& block, std::size_t rank) {
    place_.memory.upload(block.data(), whole.data() + rank * block.bytes(), block.bytes());
  };
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto rank = static_cast<std::size_t>(team_.rank(static_cast<int>(i)));
    part(inputs.q, ranks_[i].q, rank);
    part(inputs.k, ranks_[i].k, rank);
    part(inputs.v, ranks_[i].v, rank);
    if (shape_.backward) part(inputs.dout, ranks_[i].dout, rank);
  }
}

void Session::poison_outputs() {
  for (const Rank& rank : ranks_) {
    for (const Block* block : {&rank.out, &rank.lse, &rank.dq, &rank.dk, &rank.dv, &rank.workspace}) {
      place_.memory.fill(*block, 0xFF);
    }
  }
}

void Session::call(const Rank& rank, const Step& step, Direction direction) const {
  const auto queries = [&](const Block& block, int dim) {
    return TensorView::packed(block.data(), shape_.dtype, rows_, shape_.heads_q, dim);
  };
  const auto keys = [&](const Block& block, int dim) {
    return TensorView::packed(block.data(), shape_.dtype, key_rows_, shape_.heads_kv, dim);
  };
  const int d = shape_.head_dim, dv = shape_.dim_v();
  const LseView lse = LseView::packed(static_cast<float*>(rank.lse.data()), shape_.heads_q, rows_);
  const BufferView workspace{rank.workspace.data(), rank.workspace.bytes()};
  const BufferView kept{rank.kept.data(), rank.kept.bytes()};
  if (direction == Direction::forward) {
    ForwardArgs args;
    args.q = queries(rank.q, d);
    args.k = keys(rank.k, d);
    args.v = keys(rank.v, dv);
    args.out = queries(rank.out, dv);
    args.lse = lse;
    args.workspace = workspace;
    args.kept_kv = kept;
    step.forward(args, rank.stream);
    return;
  }
  BackwardArgs args;
  args.q = queries(rank.q, d);
  args.k = keys(rank.k, d);
  args.v = keys(rank.v, dv);
  args.out = queries(rank.out, dv);
  args.dout = queries(rank.dout, dv);
  args.lse = lse;
  args.dq = queries(rank.dq, d);
  args.dk = keys(rank.dk, d);
  args.dv = keys(rank.dv, dv);
  args.workspace = workspace;
  args.kept_kv = kept;
  step.backward(args, rank.stream);
}

void Session::finish(const Rank& rank) const {
  if (!place_.memory.host()) place_.memory.device().synchronize(rank.stream.handle);
}

void Session::forward() {
  team_.run([&](int index, const Team::Barrier&) {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    call(rank, *rank.step, Direction::forward);
    finish(rank);
  });
}

void Session::backward() {
  team_.run([&](int index, const Team::Barrier&) {
    const Rank& rank = ranks_[static_cast<std::size_t>(index)];
    call(rank, *rank.step, Direction::backward);
    finish(rank);
  });
}

/// One piece per rank.
std::vector<std::byte> Session::download(Block Rank::*tensor) const {
  const std::size_t bytes = (ranks_.front().*tensor).bytes();
  std::vector<std::byte> whole(static_cast<std::size_t>(team_.world()) * bytes);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const auto rank = static_cast<std::size_t>(team_.rank(static_cast<int>(i)));
    place_.memory.download(whole.data() + rank * bytes, (ranks_[i].*tensor).data(), bytes);
  }
  team_.collect(whole);
  return whole;
}

Outputs Session::download() const {
  Outputs whole;
  whole.out = download(&Rank::out);
  if (shape_.backward) {
    whole.dq = download(&Rank::dq);
    whole.dk = download(&Rank::dk);
    whole.dv = download(&Rank::dv);
  }
  // Ranks have their rows head by head, as the whole has all rows.
  const std::vector<std::byte> lse = download(&Rank::lse);
  whole.lse.resize(lse.size() / sizeof(float));
  const auto run = static_cast<std::size_t>(rows_);
  const std::byte* from = lse.data();
  for (int rank = 0; rank < team_.world(); ++rank)
    for (int head = 0; head < shape_.heads_q; ++head, from += run * sizeof(float))
      std::memcpy(whole.lse.data() + head * rows() + rank * rows_, from, run * sizeof(float));
  return whole;
}

}  // namespace bdcp::bench
