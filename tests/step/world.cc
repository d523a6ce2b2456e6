#include "step/world.h"

#include <cstring>
#include <stdexcept>
#include <thread>

namespace bdcp::test {
namespace {

void copy_rows(HostTensor& to, std::int64_t to_begin, const HostTensor& from, std::int64_t from_begin,
               std::int64_t count) {
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t h = 0; h < from.heads(); ++h)
      for (std::int64_t d = 0; d < from.dim(); ++d) to.set(to_begin + t, h, d, from.at(from_begin + t, h, d));
}

HostTensor shard(const HostTensor& global, std::int64_t begin, std::int64_t rows) {
  HostTensor part(global.dtype(), rows, global.heads(), global.dim());
  copy_rows(part, 0, global, begin, rows);
  return part;
}

}  // namespace

GlobalInputs::GlobalInputs(const DocLayout& layout, const CallShape& s, std::uint64_t seed,
                           HostTensor::Order order)
    : q(s.dtype, layout.padded_tokens(), s.heads_q, s.head_dim, order),
      k(s.dtype, layout.padded_tokens(), s.heads_kv, s.head_dim, order),
      v(s.dtype, layout.padded_tokens(), s.heads_kv, s.dim_v(), order),
      dout(s.dtype, layout.padded_tokens(), s.heads_q, s.dim_v(), order) {
  q.randomize(seed * 4 + 1);
  k.randomize(seed * 4 + 2);
  v.randomize(seed * 4 + 3);
  dout.randomize(seed * 4 + 4);
}

bool GlobalResults::same_bits(const GlobalResults& other) const {
  return out.same_bits(other.out) && dq.same_bits(other.dq) && dk.same_bits(other.dk) &&
         dv.same_bits(other.dv) &&
         std::memcmp(lse.data.data(), other.lse.data.data(), lse.data.size() * sizeof(float)) == 0;
}

Scratch::Scratch(std::size_t bytes) : bytes_(bytes + 256, 0xFF), size_(bytes) {}
BufferView Scratch::view() const {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
  return {reinterpret_cast<void*>((address + 255) / 256 * 256), size_};
}

Runtime quiet_runtime(const std::string& policy_json) {
  RuntimeOptions options;
  Policy::Sources sources;
  sources.json = policy_json;
  sources.ignore_env = true;
  options.policy = Policy::load(sources);
  options.log_sink = [](PolicyValues::LogLevel, std::string_view) {};
  return Runtime::create(std::move(options));
}

RankRun::RankRun(const Step& step, const CallShape& s, const GlobalInputs& in, int rank)
    : forward_(step.workspace(s).forward),
      backward_(step.workspace(s).backward),
      kept_(step.workspace(s).kept_kv) {
  const std::int64_t rows = step.layout().local_tokens(), begin = rank * rows;
  q = shard(in.q, begin, rows);
  k = shard(in.k, begin, rows);
  v = shard(in.v, begin, rows);
  dout = shard(in.dout, begin, rows);
  out = HostTensor(s.dtype, rows, s.heads_q, s.dim_v()).poison(0, rows);
  dq = HostTensor(s.dtype, rows, s.heads_q, s.head_dim).poison(0, rows);
  dk = HostTensor(s.dtype, rows, s.heads_kv, s.head_dim).poison(0, rows);
  dv = HostTensor(s.dtype, rows, s.heads_kv, s.dim_v()).poison(0, rows);
  lse = HostLse(s.heads_q, rows);
}

void RankRun::forward(const Step& step) {
  ForwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.out = out.view();
  args.lse = lse.view();
  args.workspace = forward_.view();
  args.kept_kv = kept_.view();
  step.forward(args, Stream::host());
}

void RankRun::backward(const Step& step) {
  BackwardArgs args;
  args.q = q.view();
  args.k = k.view();
  args.v = v.view();
  args.out = out.view();
  args.dout = dout.view();
  args.lse = lse.view();
  args.dq = dq.view();
  args.dk = dk.view();
  args.dv = dv.view();
  args.workspace = backward_.view();
  args.kept_kv = kept_.view();
  step.backward(args, Stream::host());
}

std::vector<std::string> on_ranks(int world, const std::function<void(int, Communicator)>& body,
                                  const std::vector<std::string>& hosts) {
  std::vector<Communicator> comms(1);
  if (world > 1) comms = Communicator::in_process(world, {.name = "cp", .hosts = hosts});
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank, comm = std::move(comms[static_cast<std::size_t>(rank)])]() mutable {
      try {
        body(rank, std::move(comm));
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

GlobalResults run_world(const DocLayout& layout, const CallShape& s, const GlobalInputs& inputs,
                        const WorldOptions& options) {
  const std::int64_t rows = layout.padded_tokens(), local = layout.local_tokens();
  GlobalResults all{HostTensor(s.dtype, rows, s.heads_q, s.dim_v()),
                    HostTensor(s.dtype, rows, s.heads_q, s.head_dim),
                    HostTensor(s.dtype, rows, s.heads_kv, s.head_dim),
                    HostTensor(s.dtype, rows, s.heads_kv, s.dim_v()),
                    HostLse(s.heads_q, rows),
                    std::vector<Decision>(static_cast<std::size_t>(layout.world_size()))};
  const auto errors = on_ranks(
      layout.world_size(),
      [&](int rank, Communicator comm) {
        const Runtime runtime = quiet_runtime(options.policy);
        const Step step = runtime.begin_step(layout, s, comm, {.device = StepOptions::device_host});
        RankRun run(step, s, inputs, rank);
        run.forward(step);
        run.backward(step);
        copy_rows(all.out, rank * local, run.out, 0, local);
        copy_rows(all.dq, rank * local, run.dq, 0, local);
        copy_rows(all.dk, rank * local, run.dk, 0, local);
        copy_rows(all.dv, rank * local, run.dv, 0, local);
        for (int h = 0; h < s.heads_q; ++h)
          std::memcpy(&all.lse.data[static_cast<std::size_t>(h * rows + rank * local)],
                      &run.lse.data[static_cast<std::size_t>(h * local)],
                      static_cast<std::size_t>(local) * sizeof(float));
        all.decisions[static_cast<std::size_t>(rank)] = step.decision();
      },
      options.hosts);
  for (const std::string& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
  return all;
}

}  // namespace bdcp::test
