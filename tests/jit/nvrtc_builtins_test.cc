// A program of its own: NVRTC must not have been loaded yet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "jit/compiler.h"
#include "jit/nvrtc_library.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using ::testing::HasSubstr;
using testing::library_env;
using testing::scale_sources;
using testing::scale_spec;
using testing::TempDir;
namespace fs = std::filesystem;

// A folder that is on no search path of the loader, as a wheel's is: the builtins beside libnvrtc are the ones
// used.
TEST(NvrtcBuiltins, ComeFromBesideTheLibrary) {
  std::string why;
  const NvrtcFile found = locate_nvrtc(library_env(), &why);
  if (found.path.empty()) GTEST_SKIP() << "no NVRTC: " << why;
  const fs::path library = fs::canonical(found.path);
  const std::vector<EmbeddedFile> sources = scale_sources();
  const TempDir folder;
  for (const auto& entry : fs::directory_iterator(library.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (entry.path() == library || name.starts_with("libnvrtc-builtins.so."))
      fs::copy_file(entry.path(), fs::path(folder.path()) / name, fs::copy_options::skip_existing);
  }
  Env env = library_env();
  env.libnvrtc = (fs::path(folder.path()) / library.filename()).string();
  Compiler compiler(env);
  ASSERT_EQ(compiler.why_unavailable(), "");
  const KernelSpec spec = scale_spec();
  EXPECT_GT(compiler.compile(spec, make_spec_key(spec, sources)).cubin.size(), 64u);
  std::ifstream maps("/proc/self/maps");
  const std::string mapped((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  EXPECT_THAT(mapped, HasSubstr((fs::path(folder.path()) / "libnvrtc-builtins.so.").string()));
}

}  // namespace
}  // namespace bdcp::jit
