// KvExchange: carries out a step's K/V transfers (three paths) and the way back of dK/dV partials, for one
// rank.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bdcp/types.h"
#include "comm/exposure.h"
#include "comm/group.h"
#include "jit/kernel_cache.h"
#include "plan/plan.h"

namespace bdcp::comm {

struct KvExchangeOptions {
  ExchangePath path = ExchangePath::allgather;
  bool payload_f32 = true;  ///< dtype of gradient partials on the wire: f32, or the input's
  /// A live peer may be late to a call by start_timeout_s; timeout_s counts once all ranks have started it.
  double start_timeout_s = 600, timeout_s = 120;
  std::shared_ptr<device::Device> device;  ///< null: host memory
  std::shared_ptr<ExposureMeter> meter;    ///< null: waits on the device are not timed
  std::shared_ptr<ExposedTime> exposed;    ///< where waits are added up; may be null
  jit::KernelCache* cache = nullptr;  ///< needed with a device if shape.backward; only used during construction
};

/// Specs of the kernels this module may ask for (summing partials), for one input dtype.
std::vector<jit::KernelSpec> required_kernels(DType dtype, bool payload_f32, const std::string& arch);

/// For one call shape of one step. Everything the plan decides is prepared by the constructor; start_forward
/// and reduce are collectives: the same order on every rank, one thread at a time per rank. Arguments are
/// checked (Error(invalid_argument)) before a collective begins; other errors as Group::exchange throws them.
class KvExchange {
 public:
  /// `group` may be null in a world of one. Throws Error(compile_failed, ...) if the kernel cannot be had.
  KvExchange(const std::shared_ptr<Group>& group, const plan::GlobalPlan& global, const plan::RankPlan& plan,
             const CallShape& shape, const KvExchangeOptions& options);
  ~KvExchange();

  /// Bytes start_forward needs for landing remote K/V (256-byte aligned pieces).
  std::size_t landing_bytes() const;
  /// Remote rows inside `landing`, oldest token first: packed [remote_len, heads_kv, dim] views.
  ConstTensorView remote_k(BufferView landing) const;
  ConstTensorView remote_v(BufferView landing) const;
  /// Starts the transfers; work before this call on `stream` is seen. Host: complete on return.
  /// CUDA: runs on the group's transfer stream; finish_forward makes `stream` wait for it, and for the peers'
  /// copies out of k and v, once for all that was started. One pair of calls at a time. `within`: the call that
  /// the wait counts for.
  void start_forward(ConstTensorView k, ConstTensorView v, BufferView landing, Stream stream,
                     Direction within = Direction::forward);
  void finish_forward(Stream stream);

  /// Bytes for gradient partials: shared_dk/dv (f32), remote_dk/dv (payload) and the landing of peers'
  /// partials.
  std::size_t gradient_bytes() const;
  struct Partials {
    TensorView shared_dk, shared_dv, remote_dk, remote_dv;
  };
  Partials partials(BufferView gradients) const;
  /// Sends remote partials to their owners, receives those for own rows, sums them in rank order in f32 (own
  /// first, then ascending ranks) and rounds once into dk, dv rows >= shared_begin.
  void reduce(const Partials& partials, BufferView gradients, TensorView dk, TensorView dv, Stream stream);
  /// The two halves of reduce: transfers start once remote_dk/dv are written on `stream`; shared_dk/dv may be
  /// written until finish_reduce.
  void start_reduce(const Partials& partials, BufferView gradients, Stream stream);
  void finish_reduce(BufferView gradients, TensorView dk, TensorView dv, Stream stream);

  /// Whether any rank needs rows of another, the same on all of them: if not, start_forward and reduce move
  /// nothing and wait for nobody.
  bool moves() const;
  /// See KvLayout; the same on all ranks.
  bool fetch_is_longer() const;
  /// True if this call's strides needed more than contiguous copies (downgrade code "kv_strided").
  static bool strided(ConstTensorView k, ConstTensorView v);
  std::vector<std::shared_ptr<const jit::CompiledKernel>> kernels() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bdcp::comm
