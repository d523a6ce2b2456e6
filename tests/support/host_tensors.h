// Host tensors from and to plain vectors.
#pragma once

#include <cstring>
#include <vector>

#include "bdcp/batch.h"

namespace bdcp::test {

template <class Value>
HostTensor tensor(ElementType type, std::vector<std::int64_t> shape, const std::vector<Value>& values) {
  HostTensor out{type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(Value))};
  if (!values.empty()) std::memcpy(out.data.data(), values.data(), out.data.size());
  return out;
}

template <class Value>
std::vector<Value> values(const HostTensor& tensor) {
  std::vector<Value> out(tensor.data.size() / sizeof(Value));
  if (!out.empty()) std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

}  // namespace bdcp::test
