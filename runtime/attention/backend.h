// One interface for all attention backends: capability with a reason, kernels, prepare, then forward and
// backward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bdcp/runtime.h"
#include "bdcp/types.h"
#include "device/device.h"
#include "device/stream_counters.h"
#include "device/tables.h"
#include "jit/kernel_cache.h"
#include "jit/kernel_spec.h"
#include "plan/exchange_path.h"
#include "plan/plan.h"

namespace bdcp::attention {

/// Where the step's calls will run. facts == nullptr: host memory.
struct Target {
  const device::DeviceFacts* facts = nullptr;
  bool host() const { return facts == nullptr; }
};

struct Options {
  bool deterministic = false, batch_invariant = false;
  /// dtype of remote dK/dV partials: f32, or the input's (exchange.grad_payload).
  bool payload_f32 = true;
  friend bool operator==(const Options&, const Options&) = default;
};

/// Segments [0, plan.remote_segments()) are the remote part; everything else, padding rows included, is the
/// local part. A full call is local then remote (remote only if plan.remote_len > 0). The two parts write
/// disjoint rows of O, LSE, dQ; of dK/dV too, since a key row belongs to one segment. A backend may do work of
/// the remote part that needs no remote keys in the local part, and keep what comes of it in the workspace:
/// both parts get the same one.
enum class Part { local, remote };

struct ForwardCall {
  ConstTensorView q, k, v;             ///< local rows
  ConstTensorView remote_k, remote_v;  ///< [remote_len, heads_kv, dim]; data may be null if remote_len == 0
  TensorView out;
  LseView lse;  ///< data may be null
  BufferView workspace;
  DropoutState dropout;
  std::int64_t global_q_offset = 0, global_k_offset = 0;  ///< packed-sequence index of row 0 / key position 0
  int sm_margin = 0;  ///< SMs that kernels which would fill the device leave to a transfer
  /// Only until the transfer, which is enqueued already, has come to run: it then holds the SMs that it needs,
  /// and gives them back to this call when it is done. A kernel that fills the transfer's time leaves them
  /// throughout.
  bool margin_at_start = false;
};

struct BackwardCall {
  ConstTensorView q, k, v, remote_k, remote_v, out, dout;
  ConstLseView lse;
  TensorView dq;
  TensorView dk, dv;  ///< local key rows < shared_begin (and padding rows) are final, input dtype
  TensorView shared_dk,
      shared_dv;  ///< f32 packed [key_rows - shared_begin, heads_kv, dim]: own contribution, every row written
  TensorView remote_dk,
      remote_dv;  ///< packed [remote_len, heads_kv, dim], f32 or input dtype: every row written
  BufferView workspace;
  DropoutState dropout;
  std::int64_t global_q_offset = 0, global_k_offset = 0;
  /// SMs that kernels which would fill the device leave to a transfer for as long as they run. A transfer finds
  /// room at the start anyway: kernels of many short CTAs come first.
  int sm_margin = 0;
};

/// Prepared for one shape and one rank plan; immutable; safe for concurrent calls with distinct workspaces.
class PreparedAttention {
 public:
  virtual ~PreparedAttention() = default;
  virtual std::size_t forward_workspace() const { return 0; }
  virtual std::size_t backward_workspace() const { return 0; }
  /// Enqueues (host: completes) one part. Never synchronises, allocates device memory, or reads the plan again.
  virtual void forward(const ForwardCall& call, Part part, Stream stream) const = 0;
  virtual void backward(const BackwardCall& call, Part part, Stream stream) const = 0;
  virtual std::vector<KernelInfo> kernels() const { return {}; }
};

/// Room in work lists for later layouts with as many rows that captured calls are to serve; see
/// StepOptions::graph_documents.
struct GraphRoom {
  std::int64_t documents = 0;  ///< at most so many; 0: lists have no room to spare
  bool wanted() const { return documents > 0; }
  /// Most pieces of up to `size` that `rows` rows (or keys) are cut into, where documents, each in
  /// `per_document` ranges, and the padding share none.
  std::size_t pieces(std::int64_t rows, int size, std::int64_t per_document = 1) const {
    return wanted() ? static_cast<std::size_t>(
                          std::min(rows, rows / size + std::min(documents, rows) * per_document + 1))
                    : 0;
  }
  /// One item per row (or key).
  std::size_t each(std::int64_t rows) const { return wanted() ? static_cast<std::size_t>(rows) : 0; }
  /// One item per document.
  std::size_t segments() const { return static_cast<std::size_t>(documents); }
};

/// Inside a node, as NCCL was measured over NVLink (tools/results/NOTES.md), and between nodes with a 400
/// Gbit/s NIC per GPU.
inline constexpr std::int64_t kNodeArrivalRate = 200'000, kNicArrivalRate = 45'000;

struct PrepareContext {
  std::shared_ptr<device::Device> device;  ///< null: host
  jit::KernelCache* cache = nullptr;
  /// Called at most once per prepared call and code, from the thread of the call that is downgraded. May be
  /// empty.
  std::function<void(const Downgrade&)> on_downgrade;
  /// Takes the work lists; needed with a device. Uploaded by the caller before the first call, once for all
  /// shapes.
  std::shared_ptr<device::Tables> tables;
  /// Of the device, for kernels that draw their work; needed with a device.
  std::shared_ptr<device::StreamCounters> counters;
  /// World size 1 only: what the prepared call launches then depends on the rows, the room and the kernels, but
  /// not on the documents.
  GraphRoom room{};
  /// Of K/V, see plan::heads_at_once; 0: as the layout and the device have it. A divisor of the shape's
  /// heads_kv.
  int heads_at_once = 0;
  /// What remote K/V is expected to arrive at, in bytes per us: so long there is local work to be found for.
  std::int64_t arrival_rate = kNodeArrivalRate;
  /// No call may ever come: kernels are loaded, but work lists are made, and uploaded, by the first call.
  bool lists_later = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;
  /// Whether `shape` can run on `target`; code and text say why not ("dtype", "head_dim", "arch", "dropout",
  /// ...).
  virtual plan::Verdict can(const CallShape& shape, const Target& target, const Options& options) const = 0;
  /// Every kernel any layout may ask for; empty for host, and for shapes the backend does not take.
  virtual std::vector<jit::KernelSpec> required_kernels(const CallShape& shape, const std::string& arch,
                                                        bool distributed, const Options& options) const = 0;
  virtual std::shared_ptr<const PreparedAttention> prepare(const CallShape& shape, const plan::RankPlan& plan,
                                                           const Options& options,
                                                           const PrepareContext& context) const = 0;
};

std::unique_ptr<Backend> make_host_backend();
std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_portable_backend();
std::unique_ptr<Backend> make_hopper_backend();
/// The backends of this build, in plan::kBackendOrder; a kind that is missing has no entry.
std::vector<std::unique_ptr<Backend>> make_backends();

}  // namespace bdcp::attention
