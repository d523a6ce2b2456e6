#include "jit/cubin_format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "base/check.h"

namespace bdcp::jit {
namespace {

static_assert(std::endian::native == std::endian::little,
              "entries are written in host order, which is this one");

XXH128_hash_t checksum_of(std::span<const char> file) {
  CubinHeader header;
  std::memcpy(&header, file.data(), sizeof(header));
  header.checksum[0] = header.checksum[1] = 0;
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &header, sizeof(header));
  XXH3_128bits_update(&state, file.data() + sizeof(header), file.size() - sizeof(header));
  return XXH3_128bits_digest(&state);
}

}  // namespace

std::string encode(const CubinRecord& record) {
  auto limit = [&](const char* what, std::size_t bytes, std::uint64_t most) {
    require(bytes <= most, ErrorCode::io_error, [&] {
      return fmt::format("cache entry of kernel {}: {} has {} bytes; at most {}", record.kernel, what, bytes,
                         most);
    });
    return static_cast<std::uint32_t>(bytes);
  };
  CubinHeader header = {};
  std::memcpy(header.magic, kCubinMagic, sizeof(header.magic));
  header.schema = kCubinSchema;
  header.header_bytes = sizeof(header);
  header.key_text_bytes = limit("key text", record.key_text.size(), kMaxKeyText);
  header.kernel_bytes = limit("kernel name", record.kernel.size(), kMaxName);
  header.arch_bytes = limit("arch", record.arch.size(), kMaxName);
  header.build_bytes = limit("NVRTC build", record.nvrtc_build.size(), kMaxName);
  header.creator_bytes = limit("creator", record.creator.size(), kMaxName);
  header.log_bytes = limit("log", record.log.size(), kMaxLog);
  header.cubin_bytes = limit("cubin", record.cubin.size(), kMaxCubin);
  header.registers = record.registers;
  header.spill_bytes = record.spill_bytes;
  header.static_smem = record.static_smem;
  header.compile_ms = record.compile_ms;
  header.created = record.created;
  std::string file(sizeof(header), '\0');
  for (const std::string* part :
       {&record.key_text, &record.kernel, &record.arch, &record.nvrtc_build, &record.creator, &record.log})
    file += *part;
  file.append(record.cubin.data(), record.cubin.size());
  header.file_bytes = file.size();
  std::memcpy(file.data(), &header, sizeof(header));
  const XXH128_hash_t hash = checksum_of(file);
  header.checksum[0] = hash.low64;
  header.checksum[1] = hash.high64;
  std::memcpy(file.data(), &header, sizeof(header));
  return file;
}

bool check_header(const CubinHeader& header, std::uint64_t file_bytes, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return false;
  };
  if (std::memcmp(header.magic, kCubinMagic, sizeof(kCubinMagic)) != 0) return refuse("not a cache entry");
  if (header.schema != kCubinSchema || header.header_bytes != sizeof(header))
    return refuse(fmt::format("schema {}, not {}", header.schema, kCubinSchema));
  if (header.key_text_bytes > kMaxKeyText || header.kernel_bytes > kMaxName || header.arch_bytes > kMaxName ||
      header.build_bytes > kMaxName || header.creator_bytes > kMaxName || header.log_bytes > kMaxLog ||
      header.cubin_bytes > kMaxCubin)
    return refuse("a length is out of bounds");
  const std::uint64_t total = sizeof(header) + std::uint64_t{header.key_text_bytes} + header.kernel_bytes +
                              header.arch_bytes + header.build_bytes + header.creator_bytes + header.log_bytes +
                              header.cubin_bytes;
  if (total != header.file_bytes || total != file_bytes)
    return refuse(fmt::format("{} bytes, of which the header accounts for {}", file_bytes, total));
  return true;
}

bool decode(std::span<const char> file, CubinRecord* record, std::string* why) {
  CubinHeader header;
  if (file.size() < sizeof(header)) {
    if (why) *why = fmt::format("{} bytes, shorter than a header", file.size());
    return false;
  }
  std::memcpy(&header, file.data(), sizeof(header));
  if (!check_header(header, file.size(), why)) return false;
  const XXH128_hash_t hash = checksum_of(file);
  if (hash.low64 != header.checksum[0] || hash.high64 != header.checksum[1]) {
    if (why) *why = "checksum mismatch";
    return false;
  }
  const char* at = file.data() + sizeof(header);
  auto take = [&](std::string* text, std::uint64_t bytes) {
    text->assign(at, bytes);
    at += bytes;
  };
  take(&record->key_text, header.key_text_bytes);
  take(&record->kernel, header.kernel_bytes);
  take(&record->arch, header.arch_bytes);
  take(&record->nvrtc_build, header.build_bytes);
  take(&record->creator, header.creator_bytes);
  take(&record->log, header.log_bytes);
  record->cubin.assign(at, at + header.cubin_bytes);
  record->registers = header.registers;
  record->spill_bytes = header.spill_bytes;
  record->static_smem = header.static_smem;
  record->compile_ms = header.compile_ms;
  record->created = header.created;
  return true;
}

}  // namespace bdcp::jit
