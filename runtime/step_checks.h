// Private to step.cc: whether a call's tensors are what the step was prepared for.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>

#include "step_impl.h"

namespace bdcp {

/// Why a step does not take these tensors; nullopt: it does, and `found` is the shape that fits.
std::optional<NotMine> why_not(const Step::Impl& step, const ForwardArgs& args, Stream stream,
                               const PreparedShape** found);
std::optional<NotMine> why_not(const Step::Impl& step, const BackwardArgs& args, Stream stream,
                               const PreparedShape** found);

/// Throw Error(invalid_argument) naming the tensor or buffer.
void check_alias(std::initializer_list<std::pair<const char*, ConstTensorView>> outputs,
                 std::initializer_list<std::pair<const char*, ConstTensorView>> inputs);
void check_buffer(const char* name, BufferView buffer, std::size_t need);

}  // namespace bdcp
