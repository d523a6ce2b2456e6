// The bytes of a consensus frame: 16 bytes {magic, version, length} that never change, then a bounded body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/consensus.h"

namespace bdcp::comm {

inline constexpr std::string_view kFrameMagic = "BDCPcons";  ///< bytes 0-7
inline constexpr std::uint32_t kFrameVersion = 1;            ///< bytes 8-11, little endian
inline constexpr std::size_t kFrameHeader = 16;              ///< bytes 12-15: body length, little endian
inline constexpr std::size_t kFrameMaxBody = std::size_t{1} << 20;

/// A body that exceeds the bound is not sent: the header alone tells the peers its size, and they refuse it as
/// this rank does.
std::string encode_frame(const ConsensusInput& input);

struct DecodedFrame {
  ConsensusInput input;
  std::string error;  ///< empty, or what is wrong with the frame
};
/// Never throws for any bytes, and never allocates more than a small multiple of their number.
DecodedFrame decode_frame(std::string_view frame);

}  // namespace bdcp::comm
