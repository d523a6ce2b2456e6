#include "jit/cubin_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "jit/support.h"

namespace bdcp::jit {
namespace {

using testing::files_below;
using ::testing::HasSubstr;
using testing::read_file;
using testing::scale_sources;
using testing::scale_spec;
using ::testing::SizeIs;
using testing::TempDir;
using testing::write_file;
namespace fs = std::filesystem;

class CubinStoreTest : public ::testing::Test {
 protected:
  SpecKey key(int factor = 3) { return make_spec_key(scale_spec(factor), sources_); }
  CubinRecord record(const SpecKey& key, const std::string& build = "build1", std::size_t bytes = 5000) {
    CubinRecord record;
    record.key_text = key.text(build);
    record.kernel = "scale";
    record.arch = "sm_80";
    record.nvrtc_build = build;
    record.log = "a log";
    record.cubin.assign(bytes, 'c');
    record.registers = 9;
    return record;
  }
  CubinStore store(const std::string& root, std::vector<std::string> seeds = {}) {
    return CubinStore({root, ""}, std::move(seeds),
                      [this](const std::string& text) { warnings_.push_back(text); });
  }
  std::string root() const { return dir_.str() + "/cache"; }

  const std::vector<EmbeddedFile> sources_ = scale_sources();
  TempDir dir_;
  std::vector<std::string> warnings_;
};

TEST_F(CubinStoreTest, PublishedEntriesAreFound) {
  CubinStore store = this->store(root());
  EXPECT_FALSE(store.find(key(), "build1"));
  EXPECT_FALSE(fs::exists(root()));  // looking creates nothing
  ASSERT_TRUE(store.publish(key(), record(key())));
  const auto hit = store.find(key(), "build1");
  ASSERT_TRUE(hit);
  EXPECT_FALSE(hit->seed);
  EXPECT_EQ(hit->record.cubin, record(key()).cubin);
  EXPECT_EQ(hit->record.log, "a log");
  EXPECT_FALSE(store.find(key(), "build2"));
  EXPECT_FALSE(store.find(key(4), "build1"));
  EXPECT_THAT(files_below(root()), SizeIs(1));  // no temporary is left
  EXPECT_EQ(store.corrupt(), 0u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CubinStoreTest, FoldersAreNeverOpenToOthers) {
  const mode_t before = umask(0);
  CubinStore store = this->store(root());
  ASSERT_TRUE(store.publish(key(), record(key())));
  umask(before);
  for (const auto& entry : fs::recursive_directory_iterator(root()))
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_write | fs::perms::others_write),
              fs::perms::none)
        << entry.path();
}

TEST_F(CubinStoreTest, DamagedEntriesAreQuarantinedAndCounted) {
  CubinStore store = this->store(root());
  ASSERT_TRUE(store.publish(key(), record(key())));
  const std::string path = entry_path(root(), key(), "build1");
  const std::string good = read_file(path);
  std::uint64_t expected = 0;
  auto expect_miss = [&](const std::string& bytes, const std::string& what) {
    write_file(path, bytes);
    EXPECT_FALSE(store.find(key(), "build1")) << what;
    EXPECT_EQ(store.corrupt(), ++expected) << what;
    EXPECT_FALSE(fs::exists(path)) << what;
    EXPECT_TRUE(fs::exists(path + kQuarantineSuffix)) << what;
    ASSERT_TRUE(store.publish(key(), record(key())));  // heals
    EXPECT_TRUE(store.find(key(), "build1")) << what;
  };
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, sizeof(CubinHeader) - 1, sizeof(CubinHeader),
                                   good.size() / 2, good.size() - 1})
    expect_miss(good.substr(0, length), "length " + std::to_string(length));
  for (std::size_t at = 0; at < good.size(); at += at < 700 ? 13 : 977) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    expect_miss(damaged, "byte " + std::to_string(at));
  }
  expect_miss(std::string(10000, 'x'), "a foreign file");
  expect_miss(encode(record(key(4))), "another kernel's entry");
  expect_miss(encode(record(key(), "build2")), "another build's entry");
  EXPECT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr(path));
}

TEST_F(CubinStoreTest, QuarantineIsBounded) {
  CubinStore store = this->store(root());
  int in_one_folder = 0;
  std::string folder;
  for (int factor = 0; in_one_folder < kMaxQuarantined + 3; ++factor) {
    const SpecKey key = this->key(factor);
    if (folder.empty()) folder = key.base.substr(0, 2);
    if (key.base.substr(0, 2) != folder) continue;
    ++in_one_folder;
    write_file(entry_path(root(), key, "build1"), "junk");
    EXPECT_FALSE(store.find(key, "build1"));
  }
  EXPECT_EQ(store.corrupt(), static_cast<std::uint64_t>(in_one_folder));
  EXPECT_THAT(files_below(root(), kQuarantineSuffix), SizeIs(kMaxQuarantined));
  EXPECT_THAT(files_below(root()), SizeIs(kMaxQuarantined));
}

TEST_F(CubinStoreTest, EntriesAnotherUserCouldHaveWrittenAreNotRun) {
  CubinStore store = this->store(root());
  ASSERT_TRUE(store.publish(key(), record(key())));
  fs::permissions(entry_path(root(), key(), "build1"), fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(store.find(key(), "build1"));
  EXPECT_EQ(store.corrupt(), 1u);
}

TEST_F(CubinStoreTest, SeedsAreReadAndLeftAlone) {
  const std::string seed = dir_.str() + "/seed";
  ASSERT_TRUE(store(seed).publish(key(), record(key())));
  write_file(entry_path(seed, key(4), "build1"), "junk");
  CubinStore store = this->store(root(), {dir_.str() + "/absent", seed});
  const auto hit = store.find(key(), "build1");
  ASSERT_TRUE(hit);
  EXPECT_TRUE(hit->seed);
  EXPECT_FALSE(store.find(key(4), "build1"));
  EXPECT_EQ(store.corrupt(), 1u);
  EXPECT_TRUE(fs::exists(entry_path(seed, key(4), "build1")));
  EXPECT_FALSE(fs::exists(root()));
  ASSERT_THAT(warnings_, SizeIs(2));
  EXPECT_THAT(warnings_[0], HasSubstr("/absent"));
}

TEST_F(CubinStoreTest, WithoutNvrtcAnyBuildIsTaken) {
  const std::string seed = dir_.str() + "/seed";
  ASSERT_TRUE(store(seed).publish(key(), record(key(), "oldbuild")));
  const auto hit = store(root(), {seed}).find(key(), "");
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->record.nvrtc_build, "oldbuild");
  EXPECT_FALSE(store(root(), {seed}).find(key(4), ""));
}

TEST_F(CubinStoreTest, AFolderThatCannotBeWrittenCostsOneWarning) {
  write_file(dir_.path() / "cache" / "v1", "a file in place of a folder");
  CubinStore store = this->store(root());
  EXPECT_FALSE(store.find(key(), "build1"));
  EXPECT_FALSE(store.publish(key(), record(key())));
  EXPECT_FALSE(store.publish(key(4), record(key(4))));
  EXPECT_EQ(store.publish_failures(), 2u);
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr(root() + "/v1"));
  EXPECT_THAT(warnings_[0], HasSubstr("errno 20"));
  EXPECT_THAT(warnings_[0], HasSubstr("BDCP_CACHE_DIR"));
}

TEST_F(CubinStoreTest, AFolderInPlaceOfTheEntryIsNoEntry) {
  fs::create_directories(entry_path(root(), key(), "build1") + "/x");
  CubinStore store = this->store(root());
  EXPECT_FALSE(store.find(key(), "build1"));
  EXPECT_EQ(store.corrupt(), 1u);
}

// A file size limit makes write() fail half way, as a full disk does.
TEST_F(CubinStoreTest, AFullDiskLeavesNothingBehind) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{20000, 20000};
    setrlimit(RLIMIT_FSIZE, &limit);
    CubinStore store = this->store(root());
    const bool published = store.publish(key(), record(key(), "build1", 100000));
    const bool found = store.find(key(), "build1").has_value();
    _exit(!published && !found && store.publish_failures() == 1 && warnings_.size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(files_below(root()), SizeIs(0));
}

TEST_F(CubinStoreTest, PublishersInThreadsAndProcesses) {
  constexpr int kProcesses = 4, kThreads = 4, kKeys = 6, kRounds = 5;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      CubinStore store({root(), ""}, {}, [](const std::string&) {});
      std::atomic<int> bad{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
          for (int round = 0; round < kRounds; ++round)
            for (int k = 0; k < kKeys; ++k) {
              if (!store.publish(key(k), record(key(k)))) ++bad;
              const auto hit = store.find(key(k), "build1");
              if (!hit || hit->record.cubin.size() != 5000) ++bad;  // never absent again, never half an entry
            }
        });
      for (std::thread& thread : threads) thread.join();
      _exit(bad == 0 && store.corrupt() == 0 && store.publish_failures() == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  EXPECT_THAT(files_below(root()), SizeIs(kKeys));
}

TEST_F(CubinStoreTest, AKilledPublisherHarmsNobody) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CubinStore store({root(), ""}, {}, [](const std::string&) {});
    for (;;) store.publish(key(), record(key(), "build1", 500000));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CubinStore store = this->store(root());
  (void)store.find(key(), "build1");
  EXPECT_EQ(store.corrupt(), 0u);
  ASSERT_TRUE(store.publish(key(), record(key())));
  EXPECT_TRUE(store.find(key(), "build1"));
}

}  // namespace
}  // namespace bdcp::jit
