// Handle<Traits>: the one move-only owner of foreign handles.
#pragma once
#include <utility>

namespace bdcp {

/// Traits: `using type`, `static constexpr type null`, and `void destroy(type) noexcept` on a (stateful) Traits
/// value. The destructor is quiet: teardown errors have no one to go to.
template <class Traits>
class Handle {
 public:
  using type = typename Traits::type;
  Handle() = default;
  explicit Handle(type value, Traits traits = {}) : traits_(std::move(traits)), value_(value) {}
  Handle(Handle&& other) noexcept : traits_(std::move(other.traits_)), value_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      traits_ = std::move(other.traits_);
      value_ = other.release();
    }
    return *this;
  }
  ~Handle() { reset(); }
  type get() const { return value_; }
  explicit operator bool() const { return value_ != Traits::null; }
  type release() { return std::exchange(value_, Traits::null); }
  void reset() {
    if (value_ != Traits::null) traits_.destroy(std::exchange(value_, Traits::null));
  }

 private:
  [[no_unique_address]] Traits traits_{};
  type value_ = Traits::null;
};

}  // namespace bdcp
