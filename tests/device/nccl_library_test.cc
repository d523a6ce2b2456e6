// libnccl as it is opened, and its ABI as it is declared.
#include "device/nccl_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if BDCP_HAVE_CUDA && __has_include(<nccl.h>)
#include <nccl.h>
#define BDCP_HAVE_NCCL_HEADER 1
#endif

namespace bdcp::device {
namespace {

#if BDCP_HAVE_NCCL_HEADER
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && sizeof(nccl::Result) == sizeof(ncclResult_t));
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(nccl::kUint8 == ncclUint8 && nccl::kUndefined == NCCL_CONFIG_UNDEF_INT &&
              static_cast<int>(nccl::in_progress) == ncclInProgress &&
              static_cast<int>(nccl::remote_error) == ncclRemoteError);

TEST(NcclLibrary, TheDeclaredConfigIsTheHeaders) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.size, theirs.size);
  EXPECT_LE(ours.version, theirs.version);
}
#endif

TEST(NcclLibrary, AWrongPathIsNeverPapered) {
  std::string why;
  if (void* const loaded = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(loaded);
    GTEST_SKIP() << "a library is loaded already, which comes first";
  }
  EXPECT_FALSE(NcclLibrary::open(Env::from_pairs({{"BDCP_LIBNCCL", "/nowhere/libnccl.so.2"}}), &why));
  EXPECT_THAT(why, testing::HasSubstr("'/nowhere/libnccl.so.2' (set explicitly) does not open"));
}

TEST(NcclLibrary, OpensWhereThereIsOne) {
  std::string why;
  const auto library = NcclLibrary::open(Env::from_process(), &why);
  if (!library) GTEST_SKIP() << why;
  EXPECT_GE(library->version(), NcclLibrary::kOldest);
  EXPECT_THAT(library->version_text(), testing::StartsWith("2."));
  EXPECT_THAT(library->error(nccl::invalid_usage, "ncclSend", nullptr).message(),
              testing::HasSubstr("ncclSend failed: invalid usage"));
}

}  // namespace
}  // namespace bdcp::device
