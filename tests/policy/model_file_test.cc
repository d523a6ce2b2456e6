#include "policy/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy_support.h"

namespace bdcp::policy {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

struct ModelCase {
  const char* name;
  int heads_q, heads_kv, head_dim;
};
class ShippedModel : public testing::TestWithParam<ModelCase> {};
TEST_P(ShippedModel, HasItsHeadShapesInFp16AndBf16) {
  const ModelShapes model = load_model(GetParam().name);
  EXPECT_EQ(model.name, GetParam().name);
  ASSERT_EQ(model.shapes.size(), 2u);
  for (const CallShape& shape : model.shapes) {
    EXPECT_EQ(shape.heads_q, GetParam().heads_q);
    EXPECT_EQ(shape.heads_kv, GetParam().heads_kv);
    EXPECT_EQ(shape.head_dim, GetParam().head_dim);
    EXPECT_EQ(shape.dim_v(), GetParam().head_dim);
    EXPECT_TRUE(shape.backward);
    EXPECT_EQ(shape.scale, std::nullopt);
  }
  EXPECT_EQ(model.shapes[0].dtype, DType::f16);
  EXPECT_EQ(model.shapes[1].dtype, DType::bf16);
}
INSTANTIATE_TEST_SUITE_P(All, ShippedModel,
                         testing::Values(ModelCase{"llama3-8b", 32, 8, 128},
                                         ModelCase{"llama3-70b", 64, 8, 128}, ModelCase{"qwen3-8b", 32, 8, 128},
                                         ModelCase{"qwen3-32b", 64, 8, 128},
                                         ModelCase{"mixtral-8x7b", 32, 8, 128},
                                         ModelCase{"gemma-7b", 16, 16, 256}));

TEST(ModelFile, EveryShippedModelLoadsAndBearsItsFilesName) {
  EXPECT_THAT(shipped_models(), testing::IsSupersetOf({"gemma-7b", "llama3-8b"}));
  for (const std::string& name : shipped_models()) EXPECT_EQ(load_model(name).name, name);
}

TEST(ModelFile, ReadsAllKeysFromAPath) {
  const test::ScratchFolder folder;
  const std::string path =
      folder.write("m.json", R"({"schema_version": 1, "name": "mine", "x-note": 1, "shapes": [
    {"heads_q": 12, "heads_kv": 4, "head_dim": 192, "head_dim_v": 128, "scale": 0.5, "dtypes": ["fp32"], "backward": false},
    {"heads_q": 7, "heads_kv": 1, "head_dim": 64, "dtypes": ["bf16"]}]})");
  const ModelShapes model = load_model(path);
  EXPECT_EQ(model.name, "mine");
  ASSERT_EQ(model.shapes.size(), 2u);
  EXPECT_EQ(model.shapes[0], (CallShape{.heads_q = 12,
                                        .heads_kv = 4,
                                        .head_dim = 192,
                                        .head_dim_v = 128,
                                        .dtype = DType::f32,
                                        .scale = 0.5,
                                        .dropout_p = 0.0,
                                        .backward = false}));
  EXPECT_EQ(model.shapes[1].heads_q, 7);
}

TEST(ModelFile, ErrorsSayWhereWhatAndWhatIsAllowed) {
  const auto parse = [](const std::string& shapes) {
    return error_of(
        [&] { parse_model(R"({"schema_version": 1, "name": "m", "shapes": )" + shapes + "}", "m.json"); });
  };
  EXPECT_THAT(parse("[]"), HasSubstr("m.json: /shapes: [] is not allowed; allowed: a non-empty list"));
  EXPECT_THAT(parse(R"([{"heads_q": 9, "heads_kv": 2, "head_dim": 64, "dtypes": ["bf16"]}])"),
              HasSubstr("/shapes/0/heads_q: 9 is not allowed; allowed: a multiple of heads_kv (2)"));
  EXPECT_THAT(parse(R"([{"heads_q": 8, "heads_kv": 2, "head_dim": 513, "dtypes": ["bf16"]}])"),
              AllOf(HasSubstr("/shapes/0/head_dim: 513"), HasSubstr("<= 512")));
  EXPECT_THAT(parse(R"([{"heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtypes": ["fp8"]}])"),
              AllOf(HasSubstr("/shapes/0/dtypes/0: \"fp8\""), HasSubstr("\"fp16\"")));
  EXPECT_THAT(parse(R"([{"heads_q": 8, "heads_kv": 2, "dtypes": ["bf16"]}])"),
              HasSubstr("required key \"head_dim\" is missing"));
  EXPECT_THAT(parse(R"([{"heads_q": 8, "heads_kw": 2, "head_dim": 64, "dtypes": ["bf16"]}])"),
              HasSubstr("did you mean \"heads_kv\"?"));
  EXPECT_THAT(
      error_of([] { load_model("lama3-8b"); }),
      AllOf(HasSubstr("\"lama3-8b\""), HasSubstr("did you mean \"llama3-8b\"?"), HasSubstr("qwen3-32b")));
  EXPECT_THAT(error_of([] { load_model("/nonexistent/m.json"); }, ErrorCode::io_error),
              HasSubstr("model file"));
  EXPECT_THAT(error_of([] { parse_model(R"({"schema_version": 9})", "m.json"); }), HasSubstr("newer"));
}

}  // namespace
}  // namespace bdcp::policy
