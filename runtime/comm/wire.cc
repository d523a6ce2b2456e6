#include "comm/wire.h"

#include <fmt/format.h>

#include "comm/bytes.h"
#include "comm/socket.h"

namespace bdcp::comm {

std::string to_frame(std::string_view body) {
  std::string frame(kWireMagic);
  put(frame, kWireVersion);
  put(frame, static_cast<std::uint32_t>(body.size()));
  frame.append(body);
  return frame;
}

bool FrameReader::next(std::string& body) {
  if (!error_.empty()) return false;
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  // A foreign service is known by its first byte: nobody waits for sixteen of them.
  const std::string_view magic = rest.substr(0, kWireMagic.size());
  if (magic != kWireMagic.substr(0, magic.size())) {
    error_ = "it does not speak this protocol (magic differs)";
    return false;
  }
  if (rest.size() < kWireHeader) return false;
  Reader header(rest.substr(kWireMagic.size(), kWireHeader - kWireMagic.size()));
  const auto version = header.number<std::uint32_t>();
  const std::size_t length = header.number<std::uint32_t>();
  if (version != kWireVersion) {
    error_ = fmt::format("it speaks version {} of the protocol, this library {}", version, kWireVersion);
  } else if (length > max_body_) {
    error_ = fmt::format("its frame has {} bytes; allowed are {}", length, max_body_);
  } else if (rest.size() - kWireHeader >= length) {
    body.assign(rest.substr(kWireHeader, length));
    begin_ += kWireHeader + length;
    if (begin_ == buffer_.size() || begin_ > (std::size_t{1} << 16)) {
      buffer_.erase(0, begin_);
      begin_ = 0;
    }
    return true;
  }
  return false;
}

bool WriteQueue::flush(int fd) {
  while (!parts_.empty()) {
    const std::string& part = parts_.front();
    const Moved moved = write_some(fd, part.data() + done_, part.size() - done_);
    if (moved.closed) return false;
    done_ += moved.bytes;
    if (done_ < part.size()) return true;
    parts_.pop_front();
    done_ = 0;
  }
  return true;
}

}  // namespace bdcp::comm
