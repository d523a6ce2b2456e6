// The transfers of one call of a step.
#pragma once

#include <utility>

#include "comm/kv_exchange.h"

namespace bdcp {

/// Joins the caller's stream to transfers that were started, also when something throws in between: the caller
/// may then free or reuse what they still read and write. Partials travel only where K/V does.
class Transfers {
 public:
  Transfers(comm::KvExchange& exchange, Stream stream, Direction within)
      : exchange_(exchange), stream_(stream), within_(within) {}
  ~Transfers() {
    if (!open_) return;
    try {
      exchange_.finish_forward(stream_);
    } catch (...) {  // the error that is on its way says more
    }
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  void start(const ConstTensorView& k, const ConstTensorView& v, BufferView landing) {
    exchange_.start_forward(k, v, landing, stream_, within_);
    open_ = true;
  }
  void finish() {
    if (std::exchange(open_, false)) exchange_.finish_forward(stream_);
  }
  void start_reduce(const comm::KvExchange::Partials& partials, BufferView gradients) {
    exchange_.start_reduce(partials, gradients, stream_);
    open_ = true;
  }
  void finish_reduce(BufferView gradients, const TensorView& dk, const TensorView& dv) {
    finish();
    exchange_.finish_reduce(gradients, dk, dv, stream_);
  }

 private:
  comm::KvExchange& exchange_;
  Stream stream_;
  Direction within_;
  bool open_ = false;
};

}  // namespace bdcp
