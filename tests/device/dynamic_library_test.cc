#include "device/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "device/device.h"

namespace bdcp::device {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "bdcp_device_XXXXXX").string();
    if (!mkdtemp(pattern.data())) std::abort();
    path = pattern;
  }
  ~TempDir() { fs::remove_all(path); }
  fs::path path;
};

TEST(DynamicLibrary, TakesWhatTheProcessHasBeforeAnythingElse) {
  std::string why;
  const auto library = DynamicLibrary::open({"libc.so.6"}, "/nonexistent/libc.so.6", {}, &why);
  ASSERT_TRUE(library) << why;
  EXPECT_THAT(library->path(), HasSubstr("libc.so.6"));
  EXPECT_NE(library->symbol("strlen"), nullptr);
  EXPECT_EQ(library->symbol("no_such_function_here"), nullptr);
  EXPECT_EQ(DynamicLibrary::locate({"libc.so.6"}, "", {}, &why), library->path());
}

TEST(DynamicLibrary, SaysWhatWasTried) {
  std::string why;
  EXPECT_EQ(DynamicLibrary::open({"libbdcp_absent.so.1"}, "", {"/nonexistent/folder"}, &why), nullptr);
  EXPECT_THAT(why, HasSubstr("libbdcp_absent.so.1"));
  EXPECT_THAT(why, HasSubstr("/nonexistent/folder"));
  why.clear();
  EXPECT_EQ(DynamicLibrary::locate({"libbdcp_absent.so.1"}, "", {"/nonexistent/folder"}, &why), "");
  EXPECT_THAT(why, HasSubstr("/nonexistent/folder"));
}

TEST(DynamicLibrary, AWrongExplicitPathIsNotPaperedOver) {
  TempDir dir;
  const std::string text = (dir.path / "text.so").string();
  std::ofstream(text) << "no library";
  for (const std::string& path : {std::string("/nonexistent/lib.so"), text}) {
    std::string why;
    EXPECT_EQ(DynamicLibrary::open({"libbdcp_absent.so.1", "libz.so.1"}, path, {}, &why), nullptr);
    EXPECT_THAT(why, HasSubstr(path));
  }
}

TEST(DynamicLibrary, LocateFollowsTheOrder) {
  TempDir dir;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(dir.path / name);
    std::ofstream(dir.path / name / "libbdcp_absent.so.2") << "x";
  }
  std::ofstream(dir.path / "a" / "libbdcp_absent.so.1") << "x";
  const std::string root = dir.path.string();
  const std::vector<std::string> names{"libbdcp_absent.so.1", "libbdcp_absent.so.2"};
  std::string why;
  EXPECT_EQ(DynamicLibrary::locate(names, "", {root, root + "/b", root + "/a"}, &why),
            root + "/b/libbdcp_absent.so.2");
  EXPECT_EQ(DynamicLibrary::locate(names, root + "/b/libbdcp_absent.so.2", {root + "/a"}, &why),
            root + "/b/libbdcp_absent.so.2");
  setenv("LD_LIBRARY_PATH", ("/nonexistent:" + root + "/a:").c_str(), 1);
  EXPECT_EQ(DynamicLibrary::locate(names, "", {root + "/b"}, &why), root + "/a/libbdcp_absent.so.1");
  unsetenv("LD_LIBRARY_PATH");
}

TEST(LibraryFolders, ToolkitsAndWheels) {
  TempDir dir;
  const std::string root = dir.path.string();
  for (const char* folder : {"cuda/lib64", "home/.local/lib/python3.11/site-packages/nvidia/cu13/lib",
                             "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
                             "venv/lib/python3.12/site-packages/nvidia/nccl/lib"})
    fs::create_directories(dir.path / folder);
  setenv("VIRTUAL_ENV", (root + "/venv").c_str(), 1);
  const auto folders =
      cuda_library_folders(Env::from_pairs({{"CUDA_HOME", root + "/cuda"}, {"HOME", root + "/home"}}));
  unsetenv("VIRTUAL_ENV");
  ASSERT_FALSE(folders.empty());
  EXPECT_EQ(folders[0], root + "/cuda/lib64");
  EXPECT_THAT(folders, Contains(root + "/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib"));
  EXPECT_THAT(folders, Contains(root + "/venv/lib/python3.12/site-packages/nvidia/nccl/lib"));
  EXPECT_THAT(folders, Contains(root + "/home/.local/lib/python3.11/site-packages/nvidia/cu13/lib"));
  for (const std::string& folder : folders) EXPECT_TRUE(fs::is_directory(folder)) << folder;
}

TEST(Driver, AbsenceHasAReason) {
  std::string why;
  const auto driver = Driver::open(Env::from_pairs({{"BDCP_LIBCUDA", "/nonexistent/libcuda.so.1"}}), &why);
  if (driver) GTEST_SKIP() << "libcuda is loaded in this process already";
  EXPECT_FALSE(why.empty());
}

}  // namespace
}  // namespace bdcp::device
