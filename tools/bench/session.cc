#include "bench/session.h"

#include <algorithm>

namespace bdcp::bench {
namespace {

/// Copies a rank's rows of a [rows, heads, dim] tensor.
void move_rows(const Memory& memory, std::vector<std::byte>& whole, const Block& part, int rank) {
  memory.download(whole.data() + static_cast<std::size_t>(rank) * part.bytes(), part.data(), part.bytes());
}

}  // namespace

Session::Session(const Runtime& runtime, const DocLayout& layout, const CallShape& shape, const Place& place)
    : runtime_(runtime), layout_(layout), shape_(shape), place_(place), team_(layout.world_size()) {
  rows_ = layout_.local_tokens();
  key_rows_ = layout_.world_size() > 1 ? layout_.local_tokens() : layout_.key_tokens();
  ranks_ = std::vector<Rank>(static_cast<std::size_t>(team_.world()));
  team_.run([&](int index, const Team::Barrier&) {
    Rank& rank = ranks_[static_cast<std::size_t>(index)];
    rank.step = begin(index);
    allocate(rank);
  });
}

Step Session::begin(int rank) const {
  StepOptions options;
  options.device = place_.device;
  return runtime_.begin_step(layout_, shape_, team_.comm(rank), options);
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
    part(inputs.q, ranks_[i].q, i);
    part(inputs.k, ranks_[i].k, i);
    part(inputs.v, ranks_[i].v, i);
    if (shape_.backward) part(inputs.dout, ranks_[i].dout, i);
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

Outputs Session::download() const {
  const std::size_t world = ranks_.size();
  const Memory& memory = place_.memory;
  Outputs whole;
  whole.out.resize(world * ranks_[0].out.bytes());
  whole.lse.resize(world * static_cast<std::size_t>(rows_ * shape_.heads_q));
  if (shape_.backward) {
    whole.dq.resize(world * ranks_[0].dq.bytes());
    whole.dk.resize(world * ranks_[0].dk.bytes());
    whole.dv.resize(world * ranks_[0].dv.bytes());
  }
  std::vector<float> lse(static_cast<std::size_t>(rows_ * shape_.heads_q));
  for (std::size_t i = 0; i < world; ++i) {
    const int index = static_cast<int>(i);
    move_rows(memory, whole.out, ranks_[i].out, index);
    if (shape_.backward) {
      move_rows(memory, whole.dq, ranks_[i].dq, index);
      move_rows(memory, whole.dk, ranks_[i].dk, index);
      move_rows(memory, whole.dv, ranks_[i].dv, index);
    }
    memory.download(lse.data(), ranks_[i].lse.data(), ranks_[i].lse.bytes());
    for (int head = 0; head < shape_.heads_q; ++head) {
      std::copy_n(lse.data() + head * rows_, rows_, whole.lse.data() + head * rows() + index * rows_);
    }
  }
  return whole;
}

}  // namespace bdcp::bench
