#include "jit/kernel_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "bdcp/error.h"
#include "jit/content_hash.h"
#include "jit/spec_key.h"
#include "jit/support.h"

namespace bdcp::jit {
namespace {

using testing::scale_sources;
using testing::scale_spec;

TEST(RenderSource, NamesEveryConstantThenIncludesTheTemplate) {
  KernelSpec spec{"negate", "sm_80", {}, 0, "scale"};
  spec.add("kRows", 64)
      .add_flag("kCausal", true)
      .add_type("Element", "float")
      .add_typed("float", "kScale", "0.5f");
  EXPECT_EQ(render_source(spec),
            "namespace bdcp::kernel {\n"
            "struct Config {\n"
            "  static constexpr int kRows = 64;\n"
            "  static constexpr bool kCausal = true;\n"
            "  using Element = float;\n"
            "  static constexpr float kScale = 0.5f;\n"
            "};\n"
            "}  // namespace bdcp::kernel\n"
            "#include \"scale.cuh\"\n");
}

TEST(RenderSource, RefusesWhatIsNotAName) {
  const std::vector<KernelSpec> bad{{"", "sm_80", {}, 0, ""},
                                    {"a b", "sm_80", {}, 0, ""},
                                    {"../x", "sm_80", {}, 0, ""},
                                    {"k", "sm_80", {}, 0, "x\""},
                                    {"k", "sm_80", {{"int", "1st", "2"}}, 0, ""},
                                    {"k", "sm_80", {{"int", "n", "2;\n#include <x>"}}, 0, ""},
                                    {"k", "sm_80", {{"int", "n", ""}}, 0, ""}};
  for (const KernelSpec& spec : bad) {
    try {
      render_source(spec);
      ADD_FAILURE() << "accepted kernel '" << spec.kernel << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  }
}

TEST(SpecKey, EverythingThatChangesTheBytesChangesTheKey) {
  auto sources = scale_sources();
  auto key = [&](const KernelSpec& spec, const std::string& build = "b1") {
    return make_spec_key(spec, sources).key(build);
  };
  std::set<std::string> keys{key(scale_spec())};
  auto expect_new = [&](const std::string& value, const char* what) {
    EXPECT_TRUE(keys.insert(value).second) << what;
    EXPECT_EQ(value.size(), 32u);
  };
  expect_new(key(scale_spec(4)), "a constant");
  expect_new(key(scale_spec(3, "sm_90")), "the arch");
  expect_new(key(scale_spec(3, "sm_90a")), "the arch's suffix");
  expect_new(key(scale_spec(), "b2"), "the NVRTC build");
  KernelSpec other = scale_spec();
  other.kernel = "negate";
  other.source = "scale";
  expect_new(key(other), "another kernel of the template");
  sources[1].text = "#pragma once\nnamespace bdcp::kernel { struct ScaleArgs { float* data; long count; }; }\n";
  expect_new(key(scale_spec()), "an included header");
  sources[0].text = "extern \"C\" __global__ void scale() {}\n";
  expect_new(key(scale_spec()), "the template");
}

TEST(SpecKey, NothingElseDoes) {
  auto sources = scale_sources();
  const std::string before = make_spec_key(scale_spec(), sources).key("b");
  sources[2].text = "int other;\n";  // not included
  KernelSpec spec = scale_spec();
  spec.dynamic_smem = 1000;  // asked for at launch
  spec.source = "scale";     // the default, spelled out
  EXPECT_EQ(make_spec_key(spec, sources).key("b"), before);
}

TEST(SpecKey, TextIsReadable) {
  const std::string text = make_spec_key(scale_spec(), scale_sources()).text("build7");
  for (const char* part :
       {"schema 1\n", "kernel scale\n", "arch sm_80\n", "nvrtc build7\n", "header scale.cuh ",
        "header scale_args.h ", "static constexpr int kFactor = 3;", "--std=c++20"})
    EXPECT_THAT(text, ::testing::HasSubstr(part));
}

TEST(HashOf, SeesEveryField) {
  std::set<std::uint64_t> hashes;
  KernelSpec spec = scale_spec();
  auto add = [&](auto change) {
    KernelSpec changed = spec;
    change(changed);
    hashes.insert(hash_of(changed));
  };
  add([](KernelSpec&) {});
  add([](KernelSpec& s) { s.kernel = "x"; });
  add([](KernelSpec& s) { s.arch = "sm_90a"; });
  add([](KernelSpec& s) { s.dynamic_smem = 1; });
  add([](KernelSpec& s) { s.source = "x"; });
  add([](KernelSpec& s) { s.constants[0].value = "64"; });
  add([](KernelSpec& s) { std::swap(s.constants[0], s.constants[1]); });
  EXPECT_EQ(hashes.size(), 7u);
}

}  // namespace
}  // namespace bdcp::jit
