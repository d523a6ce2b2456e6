// Frames between ranks: 16 bytes {magic, version, body length} that never change, then a bounded body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace bdcp::comm {

inline constexpr std::string_view kWireMagic = "BDCPwire";  ///< bytes 0-7
inline constexpr std::uint32_t kWireVersion = 1;            ///< bytes 8-11, little endian
inline constexpr std::size_t kWireHeader = 16;              ///< bytes 12-15: body length, little endian

std::string to_frame(std::string_view body);

/// Takes the bytes of a stream apart. Memory grows with the bytes that came, not with what a header promises.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_body) : max_body_(max_body) {}
  void append(std::string_view bytes) { buffer_.append(bytes); }
  /// True: `body` is the next one. False: more bytes are needed, or error() says what is wrong with the stream.
  bool next(std::string& body);
  const std::string& error() const { return error_; }
  bool empty() const { return begin_ == buffer_.size(); }

 private:
  std::size_t max_body_, begin_ = 0;
  std::string buffer_, error_;
};

/// Bytes that wait to be written to a socket.
class WriteQueue {
 public:
  void push(std::string bytes) { parts_.push_back(std::move(bytes)); }
  bool empty() const { return parts_.empty(); }
  /// Writes what the socket takes now. False: the connection is broken.
  bool flush(int fd);

 private:
  std::deque<std::string> parts_;
  std::size_t done_ = 0;  // of the first
};

}  // namespace bdcp::comm
