// Little-endian numbers and length-prefixed texts, for everything ranks send each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bdcp::comm {

template <class Unsigned>
void put(std::string& out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

inline void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

/// Reads what put() wrote; after the first read past the end everything is zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool ok() const { return ok_; }
  std::size_t left() const { return rest_.size(); }
  /// All was read, and nothing is left.
  bool done() const { return ok_ && rest_.empty(); }
  std::string_view take(std::size_t count) {
    if (!ok_ || count > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  template <class Unsigned>
  Unsigned number() {
    Unsigned value = 0;
    const std::string_view bytes = take(sizeof value);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      value =
          static_cast<Unsigned>(value | static_cast<Unsigned>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    return value;
  }
  std::string_view text() { return take(number<std::uint32_t>()); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace bdcp::comm
