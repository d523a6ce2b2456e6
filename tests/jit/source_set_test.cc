#include "jit/source_set.h"

#include <gtest/gtest.h>

#include "bdcp/error.h"

namespace bdcp::jit {
namespace {

std::vector<std::string> names(const std::vector<EmbeddedFile>& files) {
  std::vector<std::string> result;
  for (const EmbeddedFile& file : files) result.emplace_back(file.name);
  return result;
}

TEST(IncludeClosure, FollowsIncludesAndStopsAtCycles) {
  const std::vector<EmbeddedFile> files{
      {"k.cuh", "#include \"b.h\"\n  #  include <a.h>\nint x; // #include \"no.h\""},
      {"a.h", "#include \"b.h\""},
      {"b.h", "#include \"a.h\"\n#include \"absent.h\"\n#include"},
      {"no.h", ""}};
  EXPECT_EQ(names(include_closure(files, "k.cuh")), (std::vector<std::string>{"a.h", "b.h", "k.cuh"}));
}

TEST(IncludeClosure, NamesAMissingTemplate) {
  try {
    include_closure({}, "nothing.cuh");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(error.message().find("nothing.cuh"), std::string::npos);
  }
}

TEST(EmbeddedSources, HoldTheSharedHeader) {
  EXPECT_EQ(names(include_closure(embedded_sources(), "kernel_args.h")),
            (std::vector<std::string>{"kernel_args.h"}));
}

}  // namespace
}  // namespace bdcp::jit
