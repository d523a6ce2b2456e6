// Runs a whole step over in-process ranks on the host and puts the shards back together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bdcp/runtime.h"
#include "support/tensors.h"

namespace bdcp::test {

/// Global tensors of padded_tokens() rows.
struct GlobalInputs {
  HostTensor q, k, v, dout;
  GlobalInputs(const DocLayout& layout, const CallShape& shape, std::uint64_t seed,
               HostTensor::Order order = HostTensor::Order::packed);
};

struct GlobalResults {
  HostTensor out, dq, dk, dv;
  HostLse lse;
  std::vector<Decision> decisions;  ///< by rank
  bool same_bits(const GlobalResults& other) const;
};

struct WorldOptions {
  std::string policy = "{\"attention\": {\"backend\": \"host\"}}";
  std::vector<std::string> hosts{};
};

/// Host memory for a Step's workspaces, 256-byte aligned.
struct Scratch {
  explicit Scratch(std::size_t bytes);
  BufferView view() const;

 private:
  std::vector<unsigned char> bytes_;
  std::size_t size_;
};

/// A Runtime whose log goes nowhere, from policy text alone (no environment).
Runtime quiet_runtime(const std::string& policy_json);

/// One rank's shard of a forward and a backward; poisons outputs first.
struct RankRun {
  HostTensor q, k, v, dout, out, dq, dk, dv;
  HostLse lse;
  RankRun(const Step& step, const CallShape& shape, const GlobalInputs& inputs, int rank);
  void forward(const Step& step);
  void backward(const Step& step);

 private:
  Scratch forward_, backward_, kept_;
  DropoutState dropout_;
};

/// body(rank, comm) on one thread per rank; returns each rank's error text (empty: none) by rank.
std::vector<std::string> on_ranks(int world, const std::function<void(int, Communicator)>& body,
                                  const std::vector<std::string>& hosts = {});

/// Forward and backward of the whole layout at its world size. Throws the first rank's error.
GlobalResults run_world(const DocLayout& layout, const CallShape& shape, const GlobalInputs& inputs,
                        const WorldOptions& options = {});

}  // namespace bdcp::test
