// The on-disk format of a cached kernel: one self-describing file. All of its constants are here.
//
//   header (CubinHeader), then key text, kernel, arch, NVRTC build, creator, log, cubin, back to back.
//   <root>/v<schema>/<first 2 digits of base>/<first 16 digits of base>-<key>.cubin
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bdcp::jit {

inline constexpr char kCubinMagic[8] = {'B', 'D', 'C', 'P', 'C', 'U', 'B', '\n'};
/// Part of every key and of the folder name: a change leaves old entries unread, not misread.
inline constexpr std::uint32_t kCubinSchema = 1;
/// Larger claims are corruption.
inline constexpr std::uint64_t kMaxKeyText = 1u << 20, kMaxName = 4096, kMaxLog = 16u << 20,
                               kMaxCubin = 256u << 20;
inline constexpr const char* kCubinSuffix = ".cubin";
inline constexpr const char* kQuarantineSuffix = ".bad";
inline constexpr const char* kTemporaryPrefix = ".tmp.";
/// Quarantined files kept per fan-out folder; further ones are deleted.
inline constexpr int kMaxQuarantined = 8;

struct CubinHeader {
  char magic[8];
  std::uint32_t schema, header_bytes;
  std::uint64_t file_bytes;
  std::uint64_t checksum[2];  ///< XXH3-128 {low, high} of the file with this field zero
  std::uint32_t key_text_bytes, kernel_bytes, arch_bytes, build_bytes, creator_bytes, log_bytes;
  std::uint64_t cubin_bytes;
  std::int32_t registers, spill_bytes, static_smem, reserved;
  double compile_ms;
  std::int64_t created;  ///< seconds since 1970
};
static_assert(sizeof(CubinHeader) == 104);

struct CubinRecord {
  std::string key_text, kernel, arch, nvrtc_build;
  std::string creator;  ///< "pid@host"
  std::string log;
  std::vector<char> cubin;
  int registers = 0, spill_bytes = 0, static_smem = 0;
  double compile_ms = 0;
  std::int64_t created = 0;
};

std::string encode(const CubinRecord& record);
/// Checks every length against the limits and `file_bytes`, so that the rest may be allocated and read.
bool check_header(const CubinHeader& header, std::uint64_t file_bytes, std::string* why);
/// `file` is a whole file. False with `why` filled unless every byte is as written.
bool decode(std::span<const char> file, CubinRecord* record, std::string* why);

}  // namespace bdcp::jit
