// SpecMap: the hot tier: spec (and device) -> value by 64-bit hash and full comparison. Readers share the lock.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "jit/content_hash.h"
#include "jit/kernel_spec.h"

namespace bdcp::jit {

template <class Value>
class SpecMap {
 public:
  std::optional<Value> find(const KernelSpec& spec, const void* owner = nullptr) const {
    const std::uint64_t hash = combine(spec, owner);
    std::shared_lock lock(mutex_);
    const auto [begin, end] = map_.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (it->second.owner == owner && it->second.spec == spec) return it->second.value;
    return std::nullopt;
  }
  void put(const KernelSpec& spec, const void* owner, Value value) {
    const std::uint64_t hash = combine(spec, owner);
    std::unique_lock lock(mutex_);
    const auto [begin, end] = map_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second.owner == owner && it->second.spec == spec) {
        it->second.value = std::move(value);
        return;
      }
    }
    map_.emplace(hash, Item{owner, spec, std::move(value)});
  }
  template <class Predicate>
  void erase_if(const Predicate& predicate) {
    std::unique_lock lock(mutex_);
    std::erase_if(map_, [&](const auto& item) { return predicate(item.second.value); });
  }

 private:
  struct Item {
    const void* owner;
    KernelSpec spec;
    Value value;
  };
  static std::uint64_t combine(const KernelSpec& spec, const void* owner) {
    return hash_of(spec) ^ reinterpret_cast<std::uintptr_t>(owner) * 0x9E3779B97F4A7C15u;
  }
  mutable std::shared_mutex mutex_;
  std::unordered_multimap<std::uint64_t, Item> map_;
};

}  // namespace bdcp::jit
