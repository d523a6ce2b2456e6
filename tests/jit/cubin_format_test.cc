#include "jit/cubin_format.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "bdcp/error.h"

namespace bdcp::jit {
namespace {

CubinRecord sample() {
  CubinRecord record;
  record.key_text = "schema 1\nkernel k\n";
  record.kernel = "k";
  record.arch = "sm_90a";
  record.nvrtc_build = "0123";
  record.creator = "1@host";
  record.log = "ptxas info\n";
  record.cubin = {'\x7f', 'E', 'L', 'F', 0, 1, 2, 3};
  record.registers = 168;
  record.spill_bytes = 4;
  record.static_smem = 512;
  record.compile_ms = 12.5;
  record.created = 1700000000;
  return record;
}

TEST(CubinFormat, RoundTrip) {
  const std::string file = encode(sample());
  CubinRecord back;
  std::string why;
  ASSERT_TRUE(decode(file, &back, &why)) << why;
  const CubinRecord record = sample();
  EXPECT_EQ(back.key_text, record.key_text);
  EXPECT_EQ(back.kernel, record.kernel);
  EXPECT_EQ(back.arch, record.arch);
  EXPECT_EQ(back.nvrtc_build, record.nvrtc_build);
  EXPECT_EQ(back.creator, record.creator);
  EXPECT_EQ(back.log, record.log);
  EXPECT_EQ(back.cubin, record.cubin);
  EXPECT_EQ(back.registers, record.registers);
  EXPECT_EQ(back.spill_bytes, record.spill_bytes);
  EXPECT_EQ(back.static_smem, record.static_smem);
  EXPECT_EQ(back.compile_ms, record.compile_ms);
  EXPECT_EQ(back.created, record.created);
}

TEST(CubinFormat, ADamagedBitAnywhereIsSeen) {
  const std::string file = encode(sample());
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      CubinRecord record;
      std::string why;
      EXPECT_FALSE(decode(damaged, &record, &why)) << "byte " << at << " bit " << bit;
      EXPECT_FALSE(why.empty());
    }
  }
}

TEST(CubinFormat, EveryTruncationAndGrowthIsSeen) {
  const std::string file = encode(sample());
  for (std::size_t length = 0; length < file.size(); ++length) {
    CubinRecord record;
    std::string why;
    EXPECT_FALSE(decode(std::span(file.data(), length), &record, &why)) << length;
    EXPECT_FALSE(why.empty());
  }
  CubinRecord record;
  std::string why;
  EXPECT_FALSE(decode(file + '\0', &record, &why));
}

TEST(CubinFormat, LengthsBeyondTheFileAreRefusedFromTheHeaderAlone) {
  const std::string file = encode(sample());
  CubinHeader good;
  std::memcpy(&good, file.data(), sizeof(good));
  ASSERT_TRUE(check_header(good, file.size(), nullptr));
  auto refused = [&](auto change) {
    CubinHeader header = good;
    change(header);
    std::string why;
    return !check_header(header, file.size(), &why) && !why.empty();
  };
  EXPECT_TRUE(refused([](CubinHeader& h) { h.cubin_bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.cubin_bytes = kMaxCubin; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.key_text_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.log_bytes += 1; }));
  // Lengths that wrap around to the right sum.
  EXPECT_TRUE(refused([](CubinHeader& h) { h.cubin_bytes -= h.file_bytes, h.file_bytes = 0; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.file_bytes -= 1; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.schema += 1; }));
  EXPECT_TRUE(refused([](CubinHeader& h) { h.header_bytes -= 8; }));
}

TEST(CubinFormat, RecordsBeyondTheLimitsAreNotWritten) {
  CubinRecord record = sample();
  record.kernel.assign(kMaxName + 1, 'x');
  EXPECT_THROW(encode(record), Error);
}

// A change of the layout must come with a new schema number.
TEST(CubinFormat, LayoutOfSchema1) {
  EXPECT_EQ(kCubinSchema, 1u);
  EXPECT_EQ(sizeof(CubinHeader), 104u);
  EXPECT_EQ(offsetof(CubinHeader, checksum), 24u);
  EXPECT_EQ(offsetof(CubinHeader, key_text_bytes), 40u);
  EXPECT_EQ(offsetof(CubinHeader, cubin_bytes), 64u);
  EXPECT_EQ(offsetof(CubinHeader, compile_ms), 88u);
}

}  // namespace
}  // namespace bdcp::jit
