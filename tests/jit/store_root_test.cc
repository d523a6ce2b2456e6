#include "jit/store_root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "jit/support.h"

namespace bdcp::jit {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_file;
namespace fs = std::filesystem;

TEST(StoreRoot, Order) {
  TempDir dir;
  const std::string root = dir.str();
  std::vector<std::pair<std::string, std::string>> pairs{{"HOME", root + "/home"}};
  EXPECT_EQ(choose_store_root({}, Env::from_pairs(pairs)).path, root + "/home/.cache/bdcp");
  pairs.emplace_back("XDG_CACHE_HOME", root + "/xdg");
  EXPECT_EQ(choose_store_root({}, Env::from_pairs(pairs)).path, root + "/xdg/bdcp");
  pairs.emplace_back("BDCP_CACHE_DIR", root + "/env");
  EXPECT_EQ(choose_store_root({}, Env::from_pairs(pairs)).path, root + "/env");
  EXPECT_EQ(choose_store_root(root + "/wanted/", Env::from_pairs(pairs)).path, root + "/wanted");
  EXPECT_TRUE(fs::is_empty(dir.path()));  // nothing is created
}

TEST(StoreRoot, MemoryOnlyOnRequestIsNoWarning) {
  const StoreRoot root = choose_store_root("", Env::from_pairs({{"HOME", "/root"}}));
  EXPECT_EQ(root.path, "");
  EXPECT_EQ(root.warning, "");
}

TEST(StoreRoot, MissingHome) {
  const StoreRoot root = choose_store_root({}, Env::from_pairs({}));
  EXPECT_EQ(root.path, "");
  EXPECT_THAT(root.warning, HasSubstr("HOME"));
  EXPECT_THAT(root.warning, HasSubstr("BDCP_CACHE_DIR"));
}

void expect_refused(const std::string& path, const std::string& reason) {
  const StoreRoot root = choose_store_root(path, Env::from_pairs({}));
  EXPECT_EQ(root.path, "");
  EXPECT_THAT(root.warning, HasSubstr(reason));
  EXPECT_THAT(root.warning, HasSubstr("kernels.cache_dir"));
}

TEST(StoreRoot, AFileInTheWay) {
  TempDir dir;
  write_file(dir.path() / "file", "x");
  expect_refused(dir.str() + "/file", "errno 20");
  expect_refused(dir.str() + "/file/below", "errno 20");
}

TEST(StoreRoot, FoldersThatOthersCanWriteTo) {
  TempDir dir;
  for (const auto mode : {fs::perms::others_write, fs::perms::group_write}) {
    const fs::path open = dir.path() / "open";
    fs::create_directory(open);
    fs::permissions(open, fs::perms::owner_all | mode);
    expect_refused(open.string(), "other users could write");
    EXPECT_THAT(why_not_seed(open.string()), HasSubstr("other users could write"));
    fs::remove(open);
  }
}

TEST(StoreRoot, FoldersOfAnotherUser) {
  TempDir dir;
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(dir.str().c_str(), 12345, 12345), 0);
  expect_refused(dir.str(), "belongs to uid 12345");
  EXPECT_EQ(why_not_seed(dir.str()), "");  // a seed folder is the user's choice
}

TEST(StoreRoot, SeedThatIsNotThere) {
  EXPECT_THAT(why_not_seed("/nonexistent/seeds"), HasSubstr("/nonexistent/seeds"));
}

}  // namespace
}  // namespace bdcp::jit
