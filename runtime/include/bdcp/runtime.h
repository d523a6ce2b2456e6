// Runtime and Step: prepare once per set of documents, then call attention once per layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bdcp/communicator.h"
#include "bdcp/decision.h"
#include "bdcp/doc_layout.h"
#include "bdcp/error.h"
#include "bdcp/policy.h"
#include "bdcp/types.h"

namespace bdcp {

struct Event {
  std::string kind;  ///< "downgrade", "compile", "cache_warning", "failure"
  std::string text;
};

struct RuntimeOptions {
  Policy policy;
  /// Receives log lines instead of stderr. Called from any thread; must not call back into bdcp.
  std::function<void(PolicyValues::LogLevel, std::string_view)> log_sink;
  /// Receives structured events. Same rules as log_sink.
  std::function<void(const Event&)> event_sink;
  /// Policy from a file (and the environment).
  static RuntimeOptions from_file(const std::string& path);
};

/// Dropout position; only with CallShape::dropout_p > 0.
struct DropoutState {
  std::uint64_t seed = 0, offset = 0;
};

/// Tensors of one forward call on this rank: its chunk of local_tokens() rows.
struct ForwardArgs {
  ConstTensorView q, k, v;
  TensorView out;  ///< overwritten; must not alias inputs
  LseView lse{};   ///< fp32 [heads_q, tokens], natural log; overwritten; data may be null
  BufferView
      workspace;  ///< at least workspace().forward bytes; 256-byte aligned; free again when the stream is
  BufferView kept_kv{};  ///< exchange.backward_kv = keep: must live until backward has used it
  DropoutState dropout{};
  int shape = -1;  ///< index into begin_step's shapes; -1: the one that fits heads, dims and dtype
};

/// Tensors of one backward call; q, k, v, out, lse as given to and left by forward.
struct BackwardArgs {
  ConstTensorView q{}, k{}, v{}, out{}, dout{};
  ConstLseView lse{};
  TensorView dq{}, dk{}, dv{};  ///< overwritten
  BufferView workspace{};       ///< at least workspace().backward bytes
  BufferView kept_kv{};
  DropoutState dropout{};
  int shape = -1;
};

struct WorkspaceSizes {
  std::size_t forward = 0, backward = 0;
  std::size_t kept_kv = 0;  ///< 0 unless exchange.backward_kv = keep
};

/// How long a step's calls waited for transfers once their own work was done, on this rank: what the exchange
/// costs beyond what attention hides. On the host every transfer is a wait. Timed by events that are read
/// later: waits that the device has not passed yet are not in it, and no call waits for a figure.
struct ExposedExchange {
  double forward_us = 0, backward_us = 0;
  std::uint64_t forward_waits = 0, backward_waits = 0;
  std::uint64_t untimed_waits = 0;  ///< in captured graphs, or too far ahead of the device
};

/// Why a call does not belong to this step; see Step::why_not_mine.
struct NotMine {
  std::string code;  ///< "tokens", "heads", "head_dim", "dtype", "device", ...
  std::string text;
};

/// Why captured calls of an earlier step do not serve this one; see Step::recapture.
struct Recapture {
  std::string code;  ///< "device", "shapes", "tokens", "documents", "backend", "kernels"
  std::string text;
};

struct KernelInfo {
  std::string key, kernel, arch;
  double compile_ms = 0;
  int registers = 0, spill_bytes = 0, smem_bytes = 0;
  bool hit = false;  ///< came from memory, disk or a seed directory
};

/// Bounds for Runtime::required_kernels: every layout within them is covered.
struct KernelLimits {
  std::string arch = "sm_90a";
  bool distributed = true;  ///< world sizes above 1 too
};

/// Everything that depends on the documents alone, prepared. Immutable and shared: any number of threads may
/// use one Step at world size 1; at world > 1 forward and backward are collectives in the same order on every
/// rank.
///
/// At world size 1 calls may be captured into CUDA graphs. What a call is given by value stays in the graph:
/// the addresses of tensors and workspace, the dropout state. A graph needs its Step for as long as it is
/// replayed; such a Step frees its memory when it goes, which waits for the device. Steps begun with
/// StepOptions::graph_documents form classes whose captured calls serve all of their layouts:
///
///     Step step = runtime.begin_step(layout, shape, {}, {.graph_documents = 64});
///     // capture step.forward and step.backward into a graph; then for each later layout:
///     Step next = runtime.begin_step(layout, shape, {}, {.reuse = step});  // may run ahead
///     if (next.recapture()) {
///       // capture the calls of `next` into a new graph
///     } else {
///       next.refill(stream);
///       // launch the graph on `stream`
///     }
class Step {
 public:
  void forward(const ForwardArgs& args, Stream stream) const;
  void backward(const BackwardArgs& args, Stream stream) const;
  /// nullopt: forward would take these tensors. Otherwise the reason, which is also counted in the metrics.
  std::optional<NotMine> why_not_mine(const ForwardArgs& args, Stream stream) const;

  const Decision& decision() const;
  const DocLayout& layout() const;
  /// Bytes for the largest of the step's shapes.
  WorkspaceSizes workspace() const;
  WorkspaceSizes workspace(const CallShape& shape) const;
  /// The kernels this step loaded.
  std::vector<KernelInfo> kernels() const;
  /// Calls made; a captured one counts once, replays do not.
  std::uint64_t forward_calls() const;
  std::uint64_t backward_calls() const;
  /// Of all calls so far; zeros at world size 1.
  ExposedExchange exposed_exchange() const;

  /// nullopt: captured calls of StepOptions::reuse (and of its whole class) serve this step, once refilled.
  /// Else why not: the step is then the first of a class of its own, and its calls have to be captured.
  std::optional<Recapture> recapture() const;
  /// Brings this step's work lists to where the calls of its class read them, by one asynchronous copy on
  /// `stream`. What is enqueued there afterwards, replays and calls alike, finds this step's documents; work on
  /// other streams is the caller's to order with events. The first step of a class needs it only to come back
  /// after another one; calls of a step whose lists are not there throw. The class's memory lives as long as
  /// any of its steps. Not while another thread calls or refills a step of the class. Throws
  /// Error(invalid_argument) during a capture, and where recapture() says so and nothing has been captured
  /// since.
  void refill(Stream stream) const;

  struct Impl;
  explicit Step(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<Impl>& impl() const { return impl_; }  ///< for the library

 private:
  std::shared_ptr<Impl> impl_;
};

struct StepOptions {
  enum : int { device_auto = -2, device_host = -1 };
  /// CUDA ordinal the step's calls will run on, device_host, or device_auto: where CUDA works, the device of
  /// the process's local rank under torchrun, mpirun or srun (modulo the devices it sees) and device 0 without
  /// a launcher; else the host.
  int device = device_auto;
  /// Above 0: captured calls of the step can serve later layouts of as many tokens (pad with
  /// LayoutOptions::padding_tokens) in up to so many documents, as far as they take the same kernels: which
  /// ones, follows from how long most documents are, unless attention.batch_invariant fixes it. Work lists and
  /// grids are sized for any such layout. On a CUDA device and at world size 1 only.
  std::int64_t graph_documents = 0;
  /// A step begun with graph_documents, whose captured calls shall serve this one too; see Step::recapture.
  /// Room for documents is then that step's; if a new class is needed, at least graph_documents, and at least
  /// what the layout has, rounded up to a power of two.
  std::optional<Step> reuse{};
};

/// Owns policy, kernel cache, metrics and opened libraries. Thread safe; serves several devices.
class Runtime {
 public:
  static Runtime create(RuntimeOptions options = {});

  /// Plans, agrees with the other ranks (world > 1: a collective), chooses path and backend, loads kernels.
  /// `layout.world_size()` must equal `comm.size()`.
  Step begin_step(const DocLayout& layout, std::span<const CallShape> shapes, const Communicator& comm = {},
                  const StepOptions& options = {}) const;
  Step begin_step(const DocLayout& layout, const CallShape& shape, const Communicator& comm = {},
                  const StepOptions& options = {}) const;
  /// The same on a thread of its own; the order of begin_step calls per communicator is the order of issue.
  std::future<Step> begin_step_async(const DocLayout& layout, std::vector<CallShape> shapes,
                                     const Communicator& comm = {}, const StepOptions& options = {}) const;

  /// Every kernel any layout within the limits can ask for under the policy, whichever of its `groups` match
  /// (not compiled; hit, ms and resources are zero).
  std::vector<KernelInfo> required_kernels(std::span<const CallShape> shapes,
                                           const KernelLimits& limits = {}) const;
  /// Compiles or loads all of required_kernels into the cache.
  std::vector<KernelInfo> warm(std::span<const CallShape> shapes, const KernelLimits& limits = {}) const;

  Policy policy() const;
  /// Replaces the policy; `group` fields take effect in the first begin_step where all ranks hold the same one.
  void reload(Policy policy) const;
  /// Counters: steps, calls, exposed exchange time, cache hits and misses, downgrades by code, calls not taken
  /// by reason.
  std::string metrics_json() const;

  struct Impl;

 private:
  explicit Runtime(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace bdcp
